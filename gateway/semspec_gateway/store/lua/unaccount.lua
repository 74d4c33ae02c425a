-- Forget the bytes that are stored under a name.
-- KEYS: uses, bytes. ARGV: name
local bytes = redis.call('HGET', KEYS[2], ARGV[1])
if bytes then redis.call('HINCRBY', KEYS[2], '', -bytes) end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
return 'ok'
