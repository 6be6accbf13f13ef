-- Notify processes of scheduler changes. A revision in meta is returned by every exchange that fetches jobs: a worker
-- that sees a new value reads the schedulers. A process without a worker, which holds the maintenance of the queue or
-- fires its schedulers, names itself after a channel (features/many_queues), and is called there.
-- functions/schedulers.lua creates and changes schedulers, schedulers_fire.lua adds their jobs.

local REVISIONS = 32768

-- Return the revision as a part of the exchange flags: above the other flags, and never 0.
G.schedulers_flag = function(revision) return (G.count_of(revision) % REVISIONS + 1) * 65536 end

G.schedulers_changed = function(q)
  q.schedulers_flag = G.schedulers_flag(G.bump(q.meta, 'schedulesRev'))
  G.call_process(G.pcall('GET', q.lock_maintenance))
  G.call_process(G.pcall('GET', q.lock_schedules))
end

-- The job of a scheduler that repeats after completion has ended: the scheduler is due now.
G.scheduler_job_ended = function(q, name, id, now)
  G.pcall('HSET', q.schedulers_ended, name, G.int(now) .. ':' .. id)
  G.pcall('ZADD', q.schedulers_due, G.int(now), name)
  G.schedulers_changed(q)
end

-- The same, for a job that may have no scheduler.
G.report_to_scheduler = function(q, id, now)
  local name = redis.call('HGET', q.J .. id, 'schedulerName')
  if name then G.scheduler_job_ended(q, name, id, now) end
end
