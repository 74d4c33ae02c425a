-- A generation's writer says that it is alive.
-- KEYS: meta, writer. ARGV: fence, lease_ms
local fence = redis.call('HGET', KEYS[1], 'fence')
if not fence then return 'missing' end
if redis.call('HGET', KEYS[1], 'status') == 'cancelled' then return 'cancelled' end
if fence ~= ARGV[1] then return 'fenced' end
redis.call('SET', KEYS[2], fence, 'PX', ARGV[2])
return 'ok'
