-- create_budget: create the budget of a flow before its jobs are added. A repeated call changes nothing.
-- KEYS 1 meta (of the root's queue)   ARGV 1 packed {flow id, flat fields}   -> the budget's key
-- check_budget: return whether a job of another queue may start, given the budget in this queue.
-- KEYS 1 meta   ARGV 1 flow id   -> '' (yes, or there is no such budget), 'fail' or 'pause'
-- Bound: constant.

local B = G.budgets

-- Not allow-oom: it precedes the adding of jobs.
G.export('create_budget', {}, function(keys, args)
  local r = cmsgpack.unpack(args[1])
  return B.create(G.queue(keys[1]), r[1], r[2])
end)

G.export('check_budget', { 'no-writes' }, function(keys, args)
  return B.start_decision(G.queue(keys[1]).P .. 'budget:' .. args[1])
end)
