-- Append turns to a claimed session and give it back, iff the claim still holds and no turn came in between.
-- The version of a session is its number of turns. A repeated commit of the same turns is not a conflict.
-- KEYS: claim, turns. ARGV: token, version, ttl_s, then the turns
local length = redis.call('LLEN', KEYS[2])
local expected = tonumber(ARGV[2])
local is_own = redis.call('GET', KEYS[1]) == ARGV[1]
if is_own then redis.call('DEL', KEYS[1]) end
if length == expected + #ARGV - 3 and redis.call('LINDEX', KEYS[2], -1) == ARGV[#ARGV] then return 'ok' end
if not is_own then return 'fenced' end
if length ~= expected then return 'conflict' end
redis.call('RPUSH', KEYS[2], unpack(ARGV, 4))
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 'ok'
