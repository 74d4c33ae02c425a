-- Renew the lease of a generation's writer. A late heartbeat of a writer that released the generation is refused.
-- Its segments are touched, too: a full Redis evicts what was used longest ago.
-- KEYS: meta, writer, segments. ARGV: fence, lease_ms
local fence = redis.call('HGET', KEYS[1], 'fence')
if not fence then return 'missing' end
local status = redis.call('HGET', KEYS[1], 'status')
if status == 'cancelled' then return 'cancelled' end
if fence ~= ARGV[1] or status ~= 'running' then return 'fenced' end
redis.call('SET', KEYS[2], fence, 'PX', ARGV[2])
redis.call('TOUCH', KEYS[3])
return 'ok'
