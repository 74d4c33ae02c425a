-- Hold a claimed session for longer.
-- KEYS: claim. ARGV: token, lease_ms
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'fenced' end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'ok'
