-- set_fair_limits: set the limits of a fair key, or those of each fair key.   KEYS 1 meta
--   ARGV 1 packed {key, weight, concurrency, rate, max_backlog, paused, named, hold}   -> 1, or 0 if nothing changed
--   key: '' = each key, which has these limits where it has none of its own; weight, paused and hold are not used
--   each false = unchanged, 0 = none; rate: {max, duration ms}; paused: 'yes' or 'no'
--   named: `key` is the name of jobs (limited_names.lua)   hold: ms for which no job of the key starts
--   A key whose limits are all removed has no entry any more.
-- fair_keys: return the state of one key, or of a page of the keys with ready jobs in the order of their names.
--   KEYS 1 meta   ARGV 1 packed {key or false, after, count, named}   -> packed rows {key, backlog, active, weight, concurrency,
--   rate max, rate ms, maximum backlog, paused 0|1, limited until or 0}
--   key: '' = the limits of each key   after: the last key of the previous page, '' at first   count: at most 1,000 keys
-- Bound: constant per key.

local RATE = G.rows.rate
local F = G.fair
local PAGE_MAX = 1000
local RESUME_MARKERS = 32

local function changed(value, before)
  if value == false or value == nil then return before end
  return G.count_of(value)
end

-- Hold the key for `ms` from now, if it is given. Return whether it is held.
local function hold(q, key, ms)
  local now = G.now(q)
  if ms and ms > 0 then F.hold(q, key, now + ms) end
  return F.held_until(q, key) > now
end

local function key_of(r)
  if r.named then return F.key_of_name(r.key) end
  return r.key == '' and F.EVERY or r.key
end

G.export('set_fair_limits', { 'allow-oom' }, function(q, r)
  local key = key_of(r)
  local before = F.own_limits(q, key) or F.no_limits()
  local rate_max, rate_ms = before.rate_max, before.rate_ms
  if r.rate == 0 then rate_max, rate_ms = 0, 0 elseif r.rate then rate_max, rate_ms = r.rate[RATE.max], r.rate[RATE.duration] end
  local paused = r.paused == 'yes' or (not r.paused and before.paused)
  local weight = math.max(1, changed(r.weight, before.weight))
  local is_changed = F.write_limits(q, key, {
    weight = weight, concurrency = changed(r.concurrency, before.concurrency), rate_max = rate_max, rate_ms = rate_ms,
    max_backlog = changed(r.max_backlog, before.max_backlog), paused = paused, held = hold(q, key, r.hold),
  })
  if not is_changed and not r.hold then return 0 end
  if key == F.EVERY then
    F.use_every(q)
    G.wake(q, RESUME_MARKERS)
    return 1
  end
  (r.named and F.use_names or F.use)(q)
  if rate_max == 0 then redis.call('HDEL', q.fair_rates, key) end
  if F.unblock(q, key) then G.wake(q, RESUME_MARKERS) end
  return 1
end)

local function limited_until(q, key)
  local till = tonumber(redis.call('ZSCORE', q.fair_blocked, key))
  return math.max(till and till < F.FULL and till or 0, F.held_until(q, key))
end

local function state_of(q, key)
  local l = F.limits(q, key) or {}
  return G.new.fair_key({
    key = key, backlog = redis.call('ZCARD', F.queue_of(q, key)), active = F.running(q, key), weight = l.weight or 1,
    concurrency = l.concurrency or 0, rate_max = l.rate_max or 0, rate_ms = l.rate_ms or 0,
    max_backlog = l.max_backlog or 0, paused = l.paused and 1 or 0, limited_until = limited_until(q, key),
  })
end

G.export('fair_keys', { 'no-writes' }, function(q, r)
  if r.key then return { state_of(q, key_of(r)) } end
  local from = G.after(r.after)
  local keys = redis.call('ZRANGE', q.fair_keys, from, '+', 'BYLEX', 'LIMIT', 0, math.min(r.count, PAGE_MAX))
  local rows = {}
  for i = 1, #keys do rows[i] = state_of(q, keys[i]) end
  return rows
end)
