-- Count bytes that an owner stores under a name, such as "generation ID 2". Each name has the time (ms) until which it is
-- in use. Names that have expired are forgotten. Beyond the quota, names that are not in use are forgotten, those used
-- longest ago first, and returned, so that the caller deletes their keys; if that does not suffice, nothing changes.
-- KEYS: uses (sorted set), bytes (hash, with the total under ""). ARGV: name, bytes, quota, use_ms, ttl_s
if redis.call('EXISTS', KEYS[1]) ~= redis.call('EXISTS', KEYS[2]) then redis.call('DEL', KEYS[1], KEYS[2]) end
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local total = tonumber(redis.call('HGET', KEYS[2], '') or 0)
local function forget(name)
  total = total - tonumber(redis.call('HGET', KEYS[2], name) or 0)
  redis.call('HDEL', KEYS[2], name)
  redis.call('ZREM', KEYS[1], name)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[5]) * 1000)) do forget(name) end
local excess, dropped, page = total + tonumber(ARGV[2]) - tonumber(ARGV[3]), {}, 0
while excess > 0 do
  local names = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', page, 100)
  if #names == 0 then break end
  for _, name in ipairs(names) do
    if excess > 0 and name ~= ARGV[1] then
      excess = excess - tonumber(redis.call('HGET', KEYS[2], name) or 0)
      table.insert(dropped, name)
    end
  end
  page = page + 100
end
if excess > 0 then
  redis.call('HSET', KEYS[2], '', total) -- without what has expired
  return {'quota'}
end
for _, name in ipairs(dropped) do forget(name) end
redis.call('HINCRBY', KEYS[2], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], '', total + tonumber(ARGV[2]))
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[4]), ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('EXPIRE', KEYS[2], ARGV[5])
table.insert(dropped, 1, 'ok')
return dropped
