-- Become the writer of a generation that has not ended and has no writer; the raised fence excludes the previous one.
-- KEYS: meta, writer. ARGV: ttl_s, lease_ms
local status = redis.call('HGET', KEYS[1], 'status')
if not status then return {'missing'} end
if status == 'finished' or status == 'cancelled' then return {'ok', 'ended'} end
if redis.call('EXISTS', KEYS[2]) == 1 then return {'ok', 'held'} end
local fence = redis.call('HINCRBY', KEYS[1], 'fence', 1)
redis.call('HSET', KEYS[1], 'status', 'running')
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], fence, 'PX', ARGV[2])
return {'ok', tostring(fence)}
