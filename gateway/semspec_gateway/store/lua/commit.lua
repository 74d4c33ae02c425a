-- Append turns to a session and release it, iff it has no other claim and no turn was added in between.
-- The version of a session is its number of turns. A repeated commit of the same turns is not a conflict.
-- KEYS: claim, turns. ARGV: claim, version, ttl_s, then the turns
local held = redis.call('GET', KEYS[1])
local length = redis.call('LLEN', KEYS[2])
local expected = tonumber(ARGV[2])
if held == ARGV[1] then redis.call('DEL', KEYS[1]) end
if length == expected + #ARGV - 3 and redis.call('LINDEX', KEYS[2], -1) == ARGV[#ARGV] then return 'ok' end
if held and held ~= ARGV[1] then return 'fenced' end
if length ~= expected then return 'conflict' end
for i = 4, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 'ok'
