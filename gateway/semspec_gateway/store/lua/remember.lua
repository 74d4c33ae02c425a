-- Set an idempotency key if it is new, and return its value.
-- KEYS: idempotency. ARGV: value, ttl_s
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) then return {'ok', ARGV[1]} end
return {'ok', redis.call('GET', KEYS[1])}
