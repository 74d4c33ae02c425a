-- What an idempotency key stands for: the value given, unless it stands for another already.
-- KEYS: idempotency. ARGV: value, ttl_s
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) then return {'ok', ARGV[1]} end
return {'ok', redis.call('GET', KEYS[1])}
