-- Cancel a generation: its writer's next call is refused. An ended generation is unchanged.
-- KEYS: meta, writer, events
local status = redis.call('HGET', KEYS[1], 'status')
if not status then return 'missing' end
if status == 'finished' or status == 'cancelled' then return 'ok' end
redis.call('HSET', KEYS[1], 'status', 'cancelled')
redis.call('DEL', KEYS[2])
redis.call('XADD', KEYS[3], 'NOMKSTREAM', 'MAXLEN', 1, '*', 'status', 'cancelled')
redis.call('EXPIRE', KEYS[3], 10)
return 'ok'
