-- Claim a session for one generation and read its turns, in one step.
-- KEYS: claim, turns. ARGV: token, lease_ms
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return {'conflict'} end
local turns = redis.call('LRANGE', KEYS[2], 0, -1)
table.insert(turns, 1, 'ok')
return turns
