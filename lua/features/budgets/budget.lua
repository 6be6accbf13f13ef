-- Limit and record what the jobs of a flow use (docs/reference/data-model.md, "Fields of P:budget:<id>"). The hash is
-- P:budget:<root job id>. A budget is exceeded if usage is above a limit; a limit of 0 is no limit; the mark `exceeded`
-- stays.

local AMOUNTS = G.rows.amounts
local CHARGE = G.rows.charge
local REPORT = G.rows.report
local M = G.budgets

-- How long the budget of a flow can still be read after its root has ended.
M.KEPT_S = 604800

local function add(key, field, amount)
  if type(amount) == 'number' and amount > 0 then
    G.add_amount(key, field, amount)
  end
end

local function add_all(key, prefix, amounts)
  for category, amount in pairs(amounts) do add(key, prefix .. tostring(category), amount) end
end

local function over(key, field, limit)
  if type(limit) ~= 'number' or limit <= 0 then return false end
  return G.num(redis.call('HGET', key, field)) > limit
end

local function is_any_over(key, prefix, limits)
  for category, limit in pairs(limits) do
    if over(key, prefix .. tostring(category), limit) then return true end
  end
  return false
end

local function is_over(key, max_tokens, max_costs)
  local tokens, cost = unpack(redis.call('HMGET', key, 'maxTotalTokens', 'maxTotalCost'))
  return over(key, 'usedTokens', tonumber(tokens)) or over(key, 'usedCost', tonumber(cost))
    or is_any_over(key, 'usedTokens:', max_tokens) or is_any_over(key, 'usedCost:', max_costs)
end

-- Record usage: amounts with the weighted total of tokens; max_tokens, max_costs: limits by category. Return
-- 'ok', 'exceeded' (a limit is passed now) or 'no_budget'.
M.record = function(key, usage, max_tokens, max_costs)
  if redis.call('EXISTS', key) == 0 then return 'no_budget' end
  add(key, 'usedTokens', usage[AMOUNTS.total_tokens])
  add(key, 'usedCost', usage[AMOUNTS.total_cost])
  add_all(key, 'usedTokens:', usage[AMOUNTS.tokens])
  add_all(key, 'usedCost:', usage[AMOUNTS.costs])
  if not is_over(key, max_tokens, max_costs) then return 'ok' end
  redis.call('HSET', key, 'exceeded', '1')
  return 'exceeded'
end

-- Return the weighted total of tokens: each category by its weight, 1 if it has none; the plain total if that sum is 0.
local function weighted_total(tokens, weights, total)
  local sum = 0
  for category, amount in pairs(tokens) do
    local weight = weights[category]
    if type(weight) ~= 'number' or weight < 0 then weight = 1 end
    sum = sum + amount * weight
  end
  return sum > 0 and sum or total
end

-- Charge the amounts that a job used. Return true if this passed a limit for the first time.
M.charge = function(q, key, id, usage)
  local h = G.pick(key, 'tokenWeights', 'maxTokens', 'maxCosts', 'exceeded')
  local tokens = usage[AMOUNTS.tokens]
  local weighted = G.new.amounts({
    tokens = tokens, costs = usage[AMOUNTS.costs], total_cost = usage[AMOUNTS.total_cost],
    total_tokens = weighted_total(tokens, G.json(h.tokenWeights), usage[AMOUNTS.total_tokens]),
  })
  local answer = M.record(key, weighted, G.json(h.maxTokens), G.json(h.maxCosts))
  if answer ~= 'exceeded' or h.exceeded == '1' then return false end
  G.emit(q.events, 'budget-exceeded', id, 'flowId', string.sub(key, #q.P + 8))
  return true
end

-- Create the budget of the flow with the root `flow_id` before any job of it can run. fields: names and values, flat,
-- as written by _features/budgets.py. A repeated call changes nothing. The budget of an earlier flow with this
-- id (it has a time to live because its root has ended) is replaced. Return its key, which each job of the flow has as
-- `budgetKey`.
M.create = function(q, flow_id, fields)
  local key = q.P .. 'budget:' .. flow_id
  if redis.call('TTL', key) == -1 then return key end
  redis.call('UNLINK', key)
  redis.call('HSET', key, 'usedTokens', '0', 'usedCost', '0', 'exceeded', '0', unpack(fields))
  return key
end

-- Return what to do with a job of the flow before it starts: '' (it may start), 'fail' or 'pause'.
M.start_decision = function(key)
  local h = G.pcall('HMGET', key, 'exceeded', 'onExceeded')
  local exceeded, on_exceeded = unpack(h)
  if exceeded ~= '1' then return '' end
  return on_exceeded == 'pause' and 'pause' or 'fail'
end

-- The root `id` of a flow has ended.
M.expire_with_root = function(q, id, now)
  if redis.call('EXPIRE', q.P .. 'budget:' .. id, M.KEPT_S) == 0 then return end
  G.record_temporary(q, 'budget:' .. id, now, M.KEPT_S * 1000)
end

local function is_own(q, key) return string.sub(key, 1, #q.P + 7) == q.P .. 'budget:' end

-- Add the budget's decision on a fetched job to the reply. 'ask': the budget is in another queue.
M.add_decision = function(q, fetching, id, key)
  fetching.budgets = fetching.budgets or {}
  local own = is_own(q, key)
  fetching.budgets[id] = { key, own and M.start_decision(key) or 'ask' }
  -- The root of a flow that had ended runs again, so the budget must not expire.
  if key == q.P .. 'budget:' .. id then redis.call('PERSIST', key) end
end

-- Charge ended attempts. charges: {row of `finished`, budget key, usage or false}. Rejected rows are not charged.
-- Return the rows that passed a limit. A charge to a budget in another queue goes to the outbox
-- (features/outbox/outbox.lua).
M.charge_finished = function(q, charges, finished, statuses)
  local passed = {}
  for _, c in ipairs(charges) do
    local number, key, usage = c[CHARGE.row], c[CHARGE.key], c[CHARGE.usage]
    local row, status = finished[number], statuses[number]
    local id = row[REPORT.id]
    if G.has_ended(status) and usage then
      if not is_own(q, key) then
        G.outbox_put(q, 'budget', 'key', key, 'id', id, 'activation', G.int(row[REPORT.fence]), 'usage', cjson.encode(usage))
      elseif M.charge(q, key, id, usage) then
        passed[#passed + 1] = number
      end
    end
    if key == q.P .. 'budget:' .. id and (status == G.OK or status == G.FAILED) then M.expire_with_root(q, id, G.now(q)) end
  end
  return passed
end

-- Return the budget part of a reply: nil if no job of a flow with a budget is involved.
M.reply_part = function(fetching, passed)
  if not fetching.budgets and not (passed and #passed > 0) then return nil end
  return G.new.budget_verdicts({ verdicts = fetching.budgets or false, exceeding = passed or {} })
end

-- Delete the budgets of roots that were deleted before they ended.
M.delete = function(q, ids)
  local keys = {}
  for i = 1, #ids do keys[i] = q.P .. 'budget:' .. ids[i] end
  G.sum_of('UNLINK', keys)
end
