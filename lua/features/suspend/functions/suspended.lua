-- signal: send a signal to a job that waits for one, or will wait for one.
-- KEYS 1 meta   ARGV 1 packed {id, name, data text}   -> 'resumed' | 'kept' | 'full' | 'ended' | 'gone'
--   kept: it is not suspended now, and will resume as soon as it is; full: it has the maximum number of signals; ended:
--   it has ended, or just timed out
-- sweep_suspended: fail suspended jobs whose timeout has passed.
-- KEYS 1 meta   -> packed {ids, next_due ms or -1, more 0|1, held 0|1}
--   held 0: a Node peer holds the lock. more: call again. Bound: SWEEP_MAX jobs per call.

local S = G.suspension
local SWEEP_MAX = 100

G.export('signal', { 'allow-oom' }, function(q, r)
  local id, now = r.id, G.now(q)
  local h = G.job_of(q, id)
  if not h.state then return 'gone' end
  if h.state == 'suspended' and S.is_overdue(q, id, now) then
    S.time_out(q, id, now)
    return 'ended'
  end
  if G.TERMINAL[h.state] then return 'ended' end
  if S.is_full(q, id, r.data) then return 'full' end
  S.push(q, id, r.name, r.data, now)
  if h.state ~= 'suspended' and not G.steps.awaits(q, id, h, r.name) then return 'kept' end
  S.resume(q, id, now, h, r.name)
  return 'resumed'
end)

-- One step needs no lock; a lock held by a peer is respected.
G.export('sweep_suspended', { 'allow-oom' }, function(q)
  local now = G.now(q)
  if redis.call('EXISTS', q.P .. 'suspended:lock:__sweep__') == 1 then
    return { failed = {}, next_due = S.next_due(q, now), more = 0, held = 0 }
  end
  local failed, seen = S.sweep(q, now, SWEEP_MAX)
  return {
    failed = failed, next_due = S.next_due(q, now), more = seen == SWEEP_MAX and 1 or 0, held = 1,
  }
end)
