-- The metadata of a generation. Running without a lease means that its writer is gone: it is interrupted.
-- A full Redis may have evicted the segments alone: then it is missing.
-- KEYS: meta, writer, segments
local meta = redis.call('HGETALL', KEYS[1])
if #meta == 0 then return {'missing'} end
if redis.call('HGET', KEYS[1], 'bytes') ~= '0' and redis.call('EXISTS', KEYS[3]) == 0 then return {'missing'} end
if redis.call('HGET', KEYS[1], 'status') == 'running' and redis.call('EXISTS', KEYS[2]) == 0 then
  table.insert(meta, 'status')
  table.insert(meta, 'interrupted')
end
table.insert(meta, 1, 'ok')
return meta
