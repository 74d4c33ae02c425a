-- Create a generation; its first writer holds fence 1.
-- KEYS: meta. ARGV: ttl_s, then field, value, field, value, ...
if redis.call('EXISTS', KEYS[1]) == 1 then return 'exists' end
redis.call('HSET', KEYS[1], 'fence', 1, 'bytes', 0, unpack(ARGV, 2))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 'ok'
