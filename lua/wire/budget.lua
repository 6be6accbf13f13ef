-- glidemq_checkBudget               KEYS 1 budget   -> 'ok' | 'exceeded' | 'no_budget'
-- glidemq_recordUsageAndCheckBudget KEYS 1 budget   ARGV 1 tokens JSON, 2 costs JSON, 3 weighted tokens, 4 total cost,
--   5 max tokens JSON, 6 max costs JSON   -> 'ok' | 'exceeded' (by this very call) | 'no_budget'
--   Invalid JSON counts as none. Exceeded means more than the limit; a limit of 0 is none.
local W = G.W

G.export('checkBudget', { 'no-writes' }, function(keys)
  local exceeded = redis.call('HGET', keys[1], 'exceeded')
  if not exceeded and redis.call('EXISTS', keys[1]) == 0 then return 'no_budget' end
  return exceeded == '1' and 'exceeded' or 'ok'
end)

local function add(key, field, amount)
  if type(amount) == 'number' and amount > 0 then
    redis.call('HINCRBYFLOAT', key, field, string.format('%.17g', amount))
  end
end

local function add_all(key, prefix, amounts)
  for category, amount in pairs(amounts) do add(key, prefix .. tostring(category), amount) end
end

local function over(key, field, limit)
  if type(limit) ~= 'number' or limit <= 0 then return false end
  return W.num(redis.call('HGET', key, field) or '') > limit
end

local function any_over(key, prefix, limits)
  for category, limit in pairs(limits) do
    if over(key, prefix .. tostring(category), limit) then return true end
  end
  return false
end

local function is_exceeded(key, max_tokens, max_costs)
  local caps = redis.call('HMGET', key, 'maxTotalTokens', 'maxTotalCost')
  return over(key, 'usedTokens', tonumber(caps[1] or '')) or over(key, 'usedCost', tonumber(caps[2] or ''))
    or any_over(key, 'usedTokens:', max_tokens) or any_over(key, 'usedCost:', max_costs)
end

G.export('recordUsageAndCheckBudget', { 'allow-oom' }, function(keys, args)
  local key = keys[1]
  if redis.call('EXISTS', key) == 0 then return 'no_budget' end
  add(key, 'usedTokens', W.num(args[3]))
  add(key, 'usedCost', W.num(args[4]))
  add_all(key, 'usedTokens:', W.json(args[1]) or {})
  add_all(key, 'usedCost:', W.json(args[2]) or {})
  if not is_exceeded(key, W.json(args[5]) or {}, W.json(args[6]) or {}) then return 'ok' end
  redis.call('HSET', key, 'exceeded', '1')
  return 'exceeded'
end)
