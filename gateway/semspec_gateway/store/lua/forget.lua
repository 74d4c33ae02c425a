-- Delete a session's turns, unless a generation has claimed it.
-- KEYS: claim, turns
if redis.call('EXISTS', KEYS[1]) == 1 then return 'conflict' end
if redis.call('DEL', KEYS[2]) == 0 then return 'missing' end
return 'ok'
