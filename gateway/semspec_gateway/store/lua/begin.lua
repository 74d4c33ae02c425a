-- Create a generation; its first writer gets fence 1. A repeated call with the same nonce is not a conflict.
-- KEYS: meta, writer. ARGV: ttl_s, lease_ms, nonce, then field, value, field, value, ...
if redis.call('EXISTS', KEYS[1]) == 1 then
  return redis.call('HGET', KEYS[1], 'nonce') == ARGV[3] and 'ok' or 'exists'
end
redis.call('HSET', KEYS[1], 'fence', 1, 'bytes', 0, 'nonce', unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])
return 'ok'
