-- Claim a session for one generation and read its turns, in one step. The generation itself may claim it again.
-- KEYS: claim, turns. ARGV: token, lease_ms
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'conflict'} end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
local turns = redis.call('LRANGE', KEYS[2], 0, -1)
table.insert(turns, 1, 'ok')
return turns
