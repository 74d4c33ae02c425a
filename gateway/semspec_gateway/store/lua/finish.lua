-- Store a generation's outcome and release it, iff the writer has the current fence and has not stored one before.
-- KEYS: meta, segments, writer, events. ARGV: fence, ttl_s, then 'status', status, field, value, ...
local fence = redis.call('HGET', KEYS[1], 'fence')
if not fence then return 'missing' end
local status = redis.call('HGET', KEYS[1], 'status')
if status == 'cancelled' then return 'cancelled' end
if fence ~= ARGV[1] then return 'fenced' end
if status ~= 'running' then return status == ARGV[4] and 'ok' or 'fenced' end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('EXPIRE', KEYS[2], ARGV[2])
redis.call('DEL', KEYS[3])
redis.call('XADD', KEYS[4], 'MAXLEN', 1, '*', 'status', ARGV[4])
redis.call('EXPIRE', KEYS[4], 10) -- a stream takes 4 KB; those who wait for its end wait less
return 'ok'
