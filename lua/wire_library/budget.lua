-- glidemq_checkBudget: return the state of a flow's budget.   KEYS 1 budget   -> 'ok' | 'exceeded' | 'no_budget'
-- glidemq_recordUsageAndCheckBudget: record usage and return the state.   KEYS 1 budget
--   ARGV 1 tokens JSON, 2 costs JSON, 3 weighted tokens, 4 total cost, 5 max tokens JSON, 6 max costs JSON   -> 'ok' |
--   'exceeded' (by this call) | 'no_budget'
--   Invalid JSON counts as none. Exceeded means above the limit; a limit of 0 is no limit.
local B = G.budgets

G.export('checkBudget', { 'no-writes' }, function(keys)
  local exceeded = redis.call('HGET', keys[1], 'exceeded')
  if not exceeded and redis.call('EXISTS', keys[1]) == 0 then return 'no_budget' end
  return exceeded == '1' and 'exceeded' or 'ok'
end)

G.export('recordUsageAndCheckBudget', { 'allow-oom' }, function(keys, args)
  local usage = G.new.amounts({
    tokens = G.json(args[1]), costs = G.json(args[2]), total_tokens = G.num(args[3]), total_cost = G.num(args[4]),
  })
  return B.record(keys[1], usage, G.json(args[5]), G.json(args[6]))
end)
