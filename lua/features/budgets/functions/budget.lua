-- create_budget: create the budget of a flow before its jobs are added. A repeated call changes nothing.
-- KEYS 1 meta (of the root's queue)   ARGV 1 packed {flow id, flat fields}   -> the budget's key
-- check_budget: return whether a job of another queue may start, given the budget in this queue.
-- KEYS 1 meta   ARGV 1 flow id   -> '' (yes, or there is no such budget), 'fail' or 'pause'
-- Bound: constant.

local B = G.budgets

-- Not allow-oom: it precedes the adding of jobs.
G.export('create_budget', {}, function(q, r)
  return B.create(q, r.flow_id, r.fields)
end)

G.export('check_budget', { 'no-writes' }, function(q, r)
  return B.start_decision(q.P .. 'budget:' .. r.flow_id)
end)
