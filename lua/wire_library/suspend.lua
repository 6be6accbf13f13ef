-- glidemq_suspend: suspend an active job.   KEYS 1 job, 2 stream, 3 events, 4 suspended
--   ARGV 1 id, 2 entry id, 3 group, 4 now, 5 reason, 6 timeout ms (0 = none), 7 broadcast
--   -> 'ok' | 'error:not_found' | 'error:not_active'
--   A signal that came early (the function `signal` of the other library stores it) resumes the job immediately.
-- glidemq_signal: resume a suspended job.   KEYS 1 job, 2 stream, 3 events, 4 suspended, 5 signals
--   ARGV 1 id, 2 signal name, 3 data text, 4 now   -> 'ok' | 'not_suspended' (nothing is stored)
-- glidemq_sweepSuspended: fail jobs whose timeout has passed.
--   KEYS 1 suspended, 2 events, 3 failed, 4 metrics:failed   ARGV 1 now, 2 P:   -> jobs failed; at most 100 per call
local W = G.W
local S = G.suspension

local SWEEP_MAX = 100

local function resume(q, id, h, signal)
  S.deliver(q, id)
  redis.call('ZREM', q.suspended, id)
  G.make_waiting(q, id, h.name)
  G.emit(q.events, 'resumed', id, 'signal', signal)
end

G.export('suspend', { 'allow-oom' }, function(keys, args)
  local id, now = args[1], G.num(args[4])
  local q = W.job_queue(keys[1], id)
  local h, rejection = W.leave_active(q, id, args[2], args[3], args[7] == '1')
  if not h then return rejection end
  S.enter(q, id, now, args[5], G.duration(args[6]))
  W.free_slot_unless_ordered(q, id, h, now)
  G.emit(q.events, 'suspended', id)
  local early = S.undelivered(q, id)
  if early then resume(q, id, h, early) end
  return 'ok'
end)

G.export('signal', { 'allow-oom' }, function(keys, args)
  local id = args[1]
  local q = W.job_queue(keys[1], id)
  local h = G.job_of(q, id)
  if h.state ~= 'suspended' then return 'not_suspended' end
  S.push(q, id, args[2], args[3], G.num(args[4]))
  resume(q, id, h, args[2])
  return 'ok'
end)

G.export('sweepSuspended', { 'allow-oom' }, function(_, args)
  local q = G.queue(args[2] .. 'meta')
  return #(S.sweep(q, G.num(args[1]), SWEEP_MAX))
end)
