-- Maintain per-minute counters, summed over a call and written once. The first write of a minute deletes fields older
-- than a day, so the hash stays bounded.

local MINUTE, DAY = 60000, 86400000
local FIELDS_A_DAY = 2 * 1441
local FIELDS_MAX, SAMPLE = 6000, 500

local function trim(key, minute)
  local stale = {}
  -- A hash with more fields than a peer can have written is trimmed by samples, junk included.
  local crowded = redis.call('HLEN', key) > FIELDS_MAX
  local fields = crowded and redis.call('HRANDFIELD', key, SAMPLE) or redis.call('HKEYS', key)
  for _, field in ipairs(fields) do
    local at = tonumber(string.match(field, '^m:(%d+):'))
    if at and at < minute - DAY or crowded and not at then stale[#stale + 1] = field end
  end
  G.in_parts('HDEL', key, stale)
end

-- Trim the hash of a queue whose first write of a minute always comes from a Node peer, which deletes nothing.
G.trim_metrics = function(key, now)
  if G.size('HLEN', key) > FIELDS_A_DAY then trim(key, now - now % MINUTE) end
end

-- The fields of the last minute that was counted.
local last_minute, count_field, duration_field

-- count: jobs that ended at `now`. duration: the sum of their run times in ms.
G.metric = function(key, now, count, duration)
  if count == 0 then return end
  local minute = now - now % MINUTE
  if minute ~= last_minute then
    local field = 'm:' .. G.int(minute)
    last_minute, count_field, duration_field = minute, field .. ':c', field .. ':d'
  end
  local total = G.pcall('HINCRBY', key, count_field, count)
  if type(total) ~= 'number' then return end
  if duration > 0 then G.pcall('HINCRBY', key, duration_field, G.int(duration)) end
  if total == count then trim(key, minute) end
end

-- Count one job that has ended. processed_on: when it started to run, nil = it did not.
G.metric_of_job = function(key, now, processed_on)
  local started = tonumber(processed_on)
  G.metric(key, now, 1, started and math.max(0, now - started) or 0)
end

-- Count the jobs that a call has ended.
G.metrics_of_call = function(q, b)
  G.metric(q.metrics_completed, b.now, b.completed_n, b.completed_ms)
  G.metric(q.metrics_failed, b.now, b.failed_n, b.failed_ms)
end
