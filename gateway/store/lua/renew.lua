-- Hold a claimed session for longer, or again, if the claim ran out and nobody else has it.
-- KEYS: claim. ARGV: claim, lease_ms
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 'fenced' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 'ok'
