-- Budgets of flows (data-model.md section 11): what the jobs of a flow may use, and what they have used so far.
-- The hash stands at P:budget:<root job id>. Exceeded means more than a limit; a limit of 0 is none; the mark stays.

local M = G.budgets

-- How long the budget of a flow can still be read when its root has ended.
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
  return G.num(redis.call('HGET', key, field) or '') > limit
end

local function any_over(key, prefix, limits)
  for category, limit in pairs(limits) do
    if over(key, prefix .. tostring(category), limit) then return true end
  end
  return false
end

local function is_over(key, max_tokens, max_costs)
  local caps = redis.call('HMGET', key, 'maxTotalTokens', 'maxTotalCost')
  return over(key, 'usedTokens', tonumber(caps[1] or '')) or over(key, 'usedCost', tonumber(caps[2] or ''))
    or any_over(key, 'usedTokens:', max_tokens) or any_over(key, 'usedCost:', max_costs)
end

-- A JSON object of a hash field or an argument; anything else counts as none.
M.json = function(text)
  local ok, value = pcall(cjson.decode, text or '')
  return ok and type(value) == 'table' and value or {}
end

-- usage: {tokens, costs, weighted total, total cost}; max_tokens, max_costs: limits by category.
-- 'ok', 'exceeded' (a limit is passed now) or 'no_budget'.
M.record = function(key, usage, max_tokens, max_costs)
  if redis.call('EXISTS', key) == 0 then return 'no_budget' end
  add(key, 'usedTokens', usage[3])
  add(key, 'usedCost', usage[4])
  add_all(key, 'usedTokens:', usage[1])
  add_all(key, 'usedCost:', usage[2])
  if not is_over(key, max_tokens, max_costs) then return 'ok' end
  redis.call('HSET', key, 'exceeded', '1')
  return 'exceeded'
end

-- What tokens weigh in all: each category by its weight, 1 where it has none; the plain total where that comes to 0.
local function weighed(tokens, weights, total)
  local sum = 0
  for category, amount in pairs(tokens) do
    local weight = weights[category]
    if type(weight) ~= 'number' or weight < 0 then weight = 1 end
    sum = sum + amount * weight
  end
  return sum > 0 and sum or total
end

-- A job of the flow has used {tokens, costs, total tokens, total cost}. True if that passed a limit, which is news.
M.charge = function(q, key, id, usage)
  local h = redis.call('HMGET', key, 'tokenWeights', 'maxTokens', 'maxCosts', 'exceeded')
  local weighted = weighed(usage[1], M.json(h[1]), usage[3])
  local answer = M.record(key, { usage[1], usage[2], weighted, usage[4] }, M.json(h[2]), M.json(h[3]))
  if answer ~= 'exceeded' or h[4] == '1' then return false end
  G.emit(q.events, 'budget-exceeded', id, 'flowId', string.sub(key, #q.P + 8))
  return true
end

-- The budget of the flow whose root is `flow_id`, before any job of it can run. fields: names and values, flat, as
-- _features/budgets/options.py writes them. A repeated call changes nothing; what an earlier flow of that id left (it has a time
-- to live, its root has ended) is replaced. Returns its key, which each job of the flow holds as `budgetKey` (W49).
M.create = function(q, flow_id, fields)
  local key = q.P .. 'budget:' .. flow_id
  if redis.call('TTL', key) == -1 then return key end
  redis.call('UNLINK', key)
  redis.call('HSET', key, 'usedTokens', '0', 'usedCost', '0', 'exceeded', '0', unpack(fields))
  return key
end

-- Whether a job of the flow must not begin, and what is done then: '' (it may), 'fail' or 'pause'.
M.barred = function(key)
  local h = redis.pcall('HMGET', key, 'exceeded', 'onExceeded')
  if h.err or h[1] ~= '1' then return '' end
  return h[2] == 'pause' and 'pause' or 'fail'
end

local function is_own(q, key) return string.sub(key, 1, #q.P + 7) == q.P .. 'budget:' end

-- A job of a flow with a budget is taken: the reply says whether it may begin. 'ask': its budget is in another queue.
M.gate = function(q, fetching, id, key)
  fetching.budgets = fetching.budgets or {}
  local own = is_own(q, key)
  fetching.budgets[id] = { key, own and M.barred(key) or 'ask' }
  -- The root of a flow that had ended runs again, and its budget stands.
  if key == q.P .. 'budget:' .. id then redis.call('PERSIST', key) end
end

-- Attempts have ended: charges are {row of `finished`, budget key, usage or false}. Those that were refused have not
-- ended now. Returns the rows that passed a limit. Where the budget is another queue's, it is owed (features/outbox/outbox.lua).
M.settle = function(q, charges, finished, statuses)
  local passed = {}
  for _, c in ipairs(charges) do
    local row, key, usage, status = finished[c[1]], c[2], c[3], statuses[c[1]]
    local id = row[2]
    local ended = status ~= G.ALREADY and status ~= G.GONE and status ~= G.STALE
    if ended and usage then
      if not is_own(q, key) then
        G.outbox_put(q, 'budget', 'key', key, 'id', id, 'activation', G.int(row[4]), 'usage', cjson.encode(usage))
      elseif M.charge(q, key, id, usage) then
        passed[#passed + 1] = c[1]
      end
    end
    if key == q.P .. 'budget:' .. id and (status == G.OK or status == G.FAILED) then
      redis.call('EXPIRE', key, M.KEPT_S)
    end
  end
  return passed
end

-- What a reply says of budgets: nil where no job of such a flow is concerned.
M.told = function(fetching, passed)
  if not fetching.budgets and not (passed and #passed > 0) then return nil end
  return { fetching.budgets or false, passed or {} }
end

-- Roots that were deleted before they ended.
M.forget = function(q, ids)
  local keys = {}
  for i = 1, #ids do keys[i] = q.P .. 'budget:' .. ids[i] end
  for i = 1, #keys, 1000 do
    redis.call('UNLINK', unpack(keys, i, math.min(i + 999, #keys)))
  end
end
