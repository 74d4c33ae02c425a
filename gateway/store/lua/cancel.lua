-- End a generation for good, whoever writes it: its next word to Redis is refused. One that has ended stays as it is.
-- KEYS: meta, writer
local status = redis.call('HGET', KEYS[1], 'status')
if not status then return 'missing' end
if status == 'finished' or status == 'cancelled' then return 'ok' end
redis.call('HSET', KEYS[1], 'status', 'cancelled')
redis.call('DEL', KEYS[2])
return 'ok'
