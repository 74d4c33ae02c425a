-- Claim a session for one generation and read its turns, atomically. A claim is "ID FENCE NONCE": the writer that
-- resumes a generation has a higher fence than the previous one, and takes the claim over.
-- KEYS: claim, turns. ARGV: claim, lease_ms
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
  local id, fence = string.match(held, '^(%S+) (%d+)')
  local new_id, new_fence = string.match(ARGV[1], '^(%S+) (%d+)')
  if id ~= new_id or tonumber(fence) >= tonumber(new_fence) then return {'conflict'} end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local turns = redis.call('LRANGE', KEYS[2], 0, -1)
table.insert(turns, 1, 'ok')
return turns
