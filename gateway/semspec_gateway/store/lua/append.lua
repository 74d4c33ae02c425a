-- Append one segment record iff its writer has the current fence and has not released it, and no earlier record is missing.
-- The version of a generation is its number of segments. A repeated append of the same record is not a conflict.
-- KEYS: meta, segments, writer, events. ARGV: fence, version, record, max_bytes, ttl_s, lease_ms
local fence = redis.call('HGET', KEYS[1], 'fence')
if not fence then return 'missing' end
local status = redis.call('HGET', KEYS[1], 'status')
if status == 'cancelled' then return 'cancelled' end
if fence ~= ARGV[1] or status ~= 'running' then return 'fenced' end
redis.call('SET', KEYS[3], fence, 'PX', ARGV[6])
local version = redis.call('LLEN', KEYS[2])
local expected = tonumber(ARGV[2])
if version == expected + 1 and redis.call('LINDEX', KEYS[2], -1) == ARGV[3] then return 'ok' end
if version ~= expected then return 'conflict' end
if tonumber(redis.call('HGET', KEYS[1], 'bytes')) + #ARGV[3] > tonumber(ARGV[4]) then return 'full' end
redis.call('RPUSH', KEYS[2], ARGV[3])
redis.call('HINCRBY', KEYS[1], 'bytes', #ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('EXPIRE', KEYS[2], ARGV[5])
redis.call('XADD', KEYS[4], 'MAXLEN', 1, '*', 'segment', ARGV[2])
redis.call('EXPIRE', KEYS[4], ARGV[5])
return 'ok'
