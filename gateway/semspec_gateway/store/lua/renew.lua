-- Renew a session's claim, also an expired one that no other generation has taken.
-- KEYS: claim. ARGV: claim, lease_ms
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 'fenced' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 'ok'
