-- Schedulers, as far as the life of jobs touches them (features/schedulers/functions/schedules.lua has the rest).
-- Workers hear of changes through a count in meta, which every exchange that takes jobs brings along: whoever sees
-- another one than before looks at the schedulers.

local REVISIONS = 32768

-- A revision as the flags of an exchange carry it: above those, and never 0.
G.schedules_flag = function(revision) return (G.count_of(revision) % REVISIONS + 1) * 65536 end

G.schedules_changed = function(q)
  rawset(q, 'schedules_flag', G.schedules_flag(G.bump(q.meta, 'schedulesRev')))
end

-- The job of a scheduler that repeats after completion has ended: it is to be looked at now.
G.schedule_job_ended = function(q, name, id, now)
  redis.pcall('HSET', q.schedulers_ended, name, G.int(now) .. ':' .. id)
  redis.pcall('ZADD', q.schedulers_due, G.int(now), name)
  G.schedules_changed(q)
end
