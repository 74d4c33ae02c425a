-- Append turns to a claimed session and give it back, iff the claim still holds and no turn came in between.
-- The version of a session is its number of turns.
-- KEYS: claim, turns. ARGV: token, version, ttl_s, then the turns
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'fenced' end
redis.call('DEL', KEYS[1])
if redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[2]) then return 'conflict' end
redis.call('RPUSH', KEYS[2], unpack(ARGV, 4))
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 'ok'
