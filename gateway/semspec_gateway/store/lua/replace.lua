-- Replace the value of an idempotency key, if it still has the one that is known.
-- KEYS: idempotency. ARGV: value, new value, ttl_s
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'ok', 'kept'} end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return {'ok', 'replaced'}
