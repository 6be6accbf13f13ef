-- Count the usage of jobs per minute.
-- report_usage: write the usage of a job, replacing an earlier report. One step, so no lock is needed.
-- KEYS 1 meta   ARGV 1 packed {id, fence, processed_on, fields, tokens, costs, total tokens, total cost, model, unit,
-- event}   -> {status, 1 if it is the first report of its minute}   fence 0 = not from a worker
--   fields: flat names and values of the job's record; tokens, costs: numbers by category; event: JSON for listeners
-- usages: return the usage of many jobs.   KEYS 1 meta   ARGV 1 packed {ids, fields}   -> packed values, false = no
-- report
-- usage_minutes: sum over minutes.   KEYS 1 meta   ARGV 1 packed {first ms, minutes}   -> packed {jobs, total tokens,
-- total cost, unit, models, tokens, costs, minutes read}; models, tokens and costs flat, names and sums. Fewer minutes
-- are read if they have many names: call again for the others. Of a minute with more than NAMES_MAX names, about
-- NAMES_MAX of them are returned.
-- charge_budget: charge the usage of a job in another queue, once.   KEYS 1 meta (of the budget's queue)
-- ARGV 1 packed {flow id, mark, job, usage}   -> 1 if this passed a limit
-- Bound: constant; the ids; the minutes, and FIELDS_A_CALL fields.

local MINUTE, KEPT_S = 60000, '2592000'
local NAMES_MAX, FIELDS_A_CALL = 1000, 5000
local TOTALS = { 'jobCount', 'totalTokens', 'totalCost', 'costUnit' }
local FIELDS = { 'usage:model', 'usage:provider', 'usage:costUnit', 'usage:tokens', 'usage:costs', 'usage:totalTokens',
  'usage:totalCost', 'usage:latencyMs', 'usage:cached', 'usage:bucketTs' }


local function add(bucket, field, sign, number)
  number = G.num(number)
  if number ~= 0 then G.add_amount(bucket, field, sign * number) end
end

-- u: tokens, costs, total_tokens, total_cost, model or ''; sign -1 subtracts it.
local function count(bucket, sign, u)
  G.bump(bucket, 'jobCount', sign)
  add(bucket, 'totalTokens', sign, u.total_tokens)
  add(bucket, 'totalCost', sign, u.total_cost)
  if u.model ~= '' and G.bump(bucket, 'models:' .. u.model, sign) <= 0 then
    redis.call('HDEL', bucket, 'models:' .. u.model)
  end
  for category, number in pairs(u.tokens) do add(bucket, 'tokens:' .. tostring(category), sign, number) end
  for category, number in pairs(u.costs) do add(bucket, 'costs:' .. tostring(category), sign, number) end
end

-- The bucket of a minute without jobs is deleted, so that no rounding error stays.
local function subtract(q, key)
  local h = G.pick(key, unpack(FIELDS))
  local minute = h['usage:bucketTs']
  if not minute then return end
  local bucket = q.P .. 'usage:' .. minute
  if redis.call('EXISTS', bucket) == 0 then return end
  count(bucket, -1, {
    tokens = G.json(h['usage:tokens']), costs = G.json(h['usage:costs']),
    total_tokens = h['usage:totalTokens'], total_cost = h['usage:totalCost'], model = h['usage:model'] or '',
  })
  if G.num(redis.call('HGET', bucket, 'jobCount')) <= 0 then redis.call('UNLINK', bucket) end
end

G.export('report_usage', { 'allow-oom' }, function(q, r)
  local id, key = r.id, q.J .. r.id
  local rejected = G.reject_call(q, r)
  if rejected then return { status = rejected, is_first = 0 } end
  local now = G.now(q)
  local minute = G.int(now - now % MINUTE)
  local bucket = q.P .. 'usage:' .. minute
  local first = 1 - redis.call('EXISTS', bucket)
  subtract(q, key)
  count(bucket, 1, r)
  if r.unit ~= '' then redis.call('HSET', bucket, 'costUnit', r.unit) end
  redis.call('EXPIRE', bucket, KEPT_S)
  if first == 1 then G.record_temporary(q, 'usage:' .. minute, now, KEPT_S * 1000 + MINUTE) end
  redis.call('HDEL', key, unpack(FIELDS))
  redis.call('HSET', key, 'usage:bucketTs', minute, unpack(r.fields))
  G.emit(q.events, 'usage', id, 'data', r.event)
  return { status = G.OK, is_first = first }
end)

G.export('usages', { 'no-writes' }, function(q, r)
  local found = {}
  for i, id in ipairs(r.ids) do
    -- One field that every report writes.
    local reported = G.pcall('HEXISTS', q.J .. id, 'usage:bucketTs')
    found[i] = reported == 1 and redis.call('HMGET', q.J .. id, unpack(r.fields))
  end
  return found
end)

-- Return the fields of a minute, flat.
local function fields_of(bucket)
  local size = G.size('HLEN', bucket)
  if size <= NAMES_MAX then return size > 0 and redis.call('HGETALL', bucket) or {} end
  local fields = {}
  for _, field in ipairs(TOTALS) do
    G.append(fields, field, redis.call('HGET', bucket, field) or '')
  end
  local page = G.scan('HSCAN', bucket, '', NAMES_MAX)
  for i = 1, #page, 2 do
    if string.find(page[i], ':', 1, true) then G.append(fields, page[i], page[i + 1]) end
  end
  return fields
end

G.export('usage_minutes', { 'no-writes' }, function(q, r)
  local sums, unit = { jobCount = 0, totalTokens = 0, totalCost = 0 }, ''
  local kinds, read, minutes = { models = {}, tokens = {}, costs = {} }, 0, 0
  for minute = r.first, r.first + (r.minutes - 1) * MINUTE, MINUTE do
    if read >= FIELDS_A_CALL then break end
    local h = fields_of(q.P .. 'usage:' .. G.int(minute))
    read, minutes = read + #h / 2, minutes + 1
    for i = 1, #h, 2 do
      local field, value = h[i], h[i + 1]
      local kind, name = string.match(field, '^(%a+):(.*)$')
      if kinds[kind] then
        kinds[kind][name] = (kinds[kind][name] or 0) + G.num(value)
      elseif sums[field] then
        sums[field] = sums[field] + G.num(value)
      elseif field == 'costUnit' then
        unit = value
      end
    end
  end
  return {
    jobs = sums.jobCount, total_tokens = sums.totalTokens, total_cost = sums.totalCost, unit = unit,
    models = G.flat(kinds.models), tokens = G.flat(kinds.tokens), costs = G.flat(kinds.costs), minutes = minutes,
  }
end)

G.export('charge_budget', { 'allow-oom' }, function(q, r)
  local key = q.P .. 'budget:' .. r.flow_id
  if redis.call('EXISTS', key) == 0 or redis.call('HSETNX', key, 'charged:' .. r.mark, '1') == 0 then return 0 end
  return G.budgets.charge(q, key, r.job, r.usage) and 1 or 0
end)
