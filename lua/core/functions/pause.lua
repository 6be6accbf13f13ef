-- pause, resume: stop and start fetching for all workers.
-- KEYS 1 meta   -> 1 if the state changed, else 0
-- exchange reads the flag in the call that fetches, so no job is fetched after pause has returned. Bound: constant.

local RESUME_MARKERS = 32

local function set(paused)
  return function(q)
    local before = redis.call('HGET', q.meta, 'paused')
    redis.call('HSET', q.meta, 'paused', paused)
    G.emit(q.events, paused == '1' and 'paused' or 'resumed', '0')
    if paused == '0' then G.wake(q, RESUME_MARKERS) end
    return (before or '0') ~= paused and 1 or 0
  end
end

G.export('pause', { 'allow-oom' }, set('1'))
G.export('resume', { 'allow-oom' }, set('0'))
