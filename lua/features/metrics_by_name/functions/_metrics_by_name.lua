-- Figures per job name and minute, which workers aggregate and send with an exchange (docs/operate/metrics.md). Off unless
-- the queue turns them on.
-- P:meta, `metricsByName`: `<minutes kept>|<names>`
-- P:metrics-by-name:<minute, epoch ms>, hash: `n:<job name>` -> packed {completed, failed, retried, wait, run}, `o` -> the
-- same of all further names, `s:<worker>` -> number of its last report, `names` -> how many names the hash has.
--   wait, run: {jobs, sum in ms, bucket, jobs, bucket, jobs, ...}; the buckets are those of the worker, and only added up
-- The key expires after the minutes kept.

local MINUTE, MINUTES_MAX, NAMES_MAX = 60000, 43200, 1000
local ROWS_MAX, BUCKETS_MAX, WORKERS_MAX = 100, 1000, 10000
local ROW, STORED, DURATIONS = G.rows.name_metrics, G.rows.stored_name_metrics, G.rows.durations
local M = {}
G.metrics_by_name = M

-- Return {minutes, names}, or nil if off. text: the field of P:meta.
M.settings = function(text)
  local minutes, names = G.match(text, '^(%d+)|(%d+)$')
  if not minutes or G.count_of(minutes) == 0 then return nil end
  return { minutes = math.min(G.count_of(minutes), MINUTES_MAX), names = math.min(G.count_of(names), NAMES_MAX) }
end

local function is_sums(list, least)
  if type(list) ~= 'table' or #list < least or #list > BUCKETS_MAX then return false end
  for i = 1, #list do
    if type(list[i]) ~= 'number' or list[i] < 0 or list[i] >= 2 ^ 53 then return false end
  end
  return true
end

-- Return the unpacked figures of a field; nil if they are absent or malformed.
M.read = function(packed)
  local figures = G.unpacked(packed)
  if not is_sums({ unpack(figures, 1, STORED.retried) }, STORED.retried) then return nil end
  return is_sums(figures[STORED.wait], 2) and is_sums(figures[STORED.run], 2) and figures or nil
end

local function merged_times(one, other)
  local counts, buckets = {}, {}
  for _, list in ipairs({ one, other }) do
    for i = 3, #list - 1, 2 do
      local bucket = list[i]
      if not counts[bucket] then buckets[#buckets + 1] = bucket end
      counts[bucket] = (counts[bucket] or 0) + list[i + 1]
    end
  end
  table.sort(buckets)
  local sums = { one[DURATIONS.count] + other[DURATIONS.count], one[DURATIONS.total] + other[DURATIONS.total] }
  for i = 1, math.min(#buckets, BUCKETS_MAX / 2 - 1) do
    G.append(sums, buckets[i], counts[buckets[i]])
  end
  return sums
end

local function merged(one, other)
  if not one then return other end
  local sums = {}
  for at = 1, STORED.retried do sums[at] = one[at] + other[at] end
  sums[STORED.wait] = merged_times(one[STORED.wait], other[STORED.wait])
  sums[STORED.run] = merged_times(one[STORED.run], other[STORED.run])
  return sums
end

local function add_row(settings, key, row, figures)
  local name = row[ROW.name]
  local field = type(name) == 'string' and 'n:' .. name or 'o'
  local before = redis.call('HGET', key, field)
  if not before and field ~= 'o' then
    if G.count_of(redis.call('HGET', key, 'names')) >= settings.names then
      field = 'o'
      before = redis.call('HGET', key, field)
    else
      redis.call('HINCRBY', key, 'names', 1)
    end
  end
  redis.call('HSET', key, field, cmsgpack.pack(merged(M.read(before), figures)))
end

-- A worker whose reply was lost sends the same report again. Return true for the first of a number.
local function is_new(key, worker, number)
  local field = 's:' .. worker
  local last = redis.call('HGET', key, field)
  if last and G.count_of(last) >= number then return false end
  if last or redis.call('HLEN', key) < WORKERS_MAX then redis.call('HSET', key, field, G.int(number)) end
  return true
end

-- report: {number, rows} of a worker, each row with the minute in which the jobs ended. All of a report go to the minute
-- of its first row if that is still kept, so that a repeated report is recognized.
M.record = function(q, settings, worker, report, now)
  local rows = report[G.rows.name_metrics_report.rows]
  local this = now - now % MINUTE
  local oldest, checked = this - (settings.minutes - 1) * MINUTE, false
  for i = 1, math.min(#rows, ROWS_MAX) do
    local row = rows[i]
    local minute = math.min(this, row[ROW.minute] - row[ROW.minute] % MINUTE)
    local figures = { row[ROW.completed], row[ROW.failed], row[ROW.retried], row[ROW.wait], row[ROW.run] }
    if minute >= oldest and M.read(cmsgpack.pack(figures)) then
      local suffix = 'metrics-by-name:' .. G.int(minute)
      local key = q.P .. suffix
      local is_first = redis.call('EXISTS', key) == 0
      if not checked and not is_new(key, worker, report[G.rows.name_metrics_report.number]) then return end
      checked = true
      add_row(settings, key, row, figures)
      if is_first then
        G.expire_temporary(q, suffix, now, minute + settings.minutes * MINUTE + MINUTE - now)
      end
    end
  end
end
