-- Let a job wait for other jobs that exist. A dependency is a child by another name: the waiting job is in the state
-- `waiting-children`, `deps:<waiting job>` holds its dependencies, `parents:<dependency>` the jobs that wait for it, and
-- every end is recorded by features/flows/parents.lua. The field `dependency:<member>` of the waiting job holds the
-- effect of a failure: 'wait', 'fail_parent', 'ignore' or 'remove'; for children, the child's own options decide instead.

G.dependencies = {}
local D = G.dependencies

D.FEATURE = 'dependencies:0.2.0' -- a build without it fails the waiting job if a dependency fails

-- Return the field of the waiting job's record for the dependency `member` (`P` and id).
D.field = function(member) return 'dependency:' .. member end

-- Register `member`, a job that waits, at the job `id` of this queue. generation: of the waiting job, '' = unknown.
D.register = function(q, id, member, generation)
  G.mark_side_keys(q)
  redis.call('SADD', q.P .. 'parents:' .. id, member)
  if generation ~= '' then G.set(q, id, G.flows.link(member), generation) end
  -- Workers read the set of a job that has this field; the set alone names the waiting jobs.
  if redis.call('HSETNX', q.J .. id, 'parentIds', '[]') == 1 then G.set(q, id, 'parentQueues', '[]') end
end

-- Let the job `waiting` (in the state waiting-children) wait for the job `id` of the same queue, which has not ended.
D.attach = function(q, waiting, id, policy)
  local member = q.P .. id
  G.use_feature(q, D.FEATURE)
  G.set(q, waiting, D.field(member), policy)
  redis.call('SADD', q.P .. 'deps:' .. waiting, member)
  D.register(q, id, q.P .. waiting, G.flows.generation(q, waiting))
end

-- Delete the registration of a job that no longer waits for the job `id` of this queue.
D.unregister = function(q, id, member)
  redis.call('SREM', q.P .. 'parents:' .. id, member)
  redis.call('HDEL', q.J .. id, G.flows.link(member))
end
