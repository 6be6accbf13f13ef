-- Ready jobs with a fair key: their places, and the slots of their keys (docs/design/ready-sources.md).
--   P:fairq:<key>     sorted set, the ready jobs of one key, by priority and order of arrival
--   P:fair-keys       sorted set (scores 0) of the keys with ready jobs; each of them is in one of the next two
--   P:fair            sorted set, keys that may be served, by the turn at which they are served next; also keys without
--                     ready jobs that were served early (fetch_fair.lua), until their turn comes
--   P:fair-blocked    sorted set, keys that may not be served: until a time (rate limit), FULL or PAUSED
--   P:fair-delayed    sorted set, delayed jobs by due time. Peers do not promote them, so they cannot pass the limits.
--   P:fair-active     hash, active job -> key       P:fair-running   hash, key -> number of active jobs
--   P:fair-limits     hash, key -> weight|concurrency|rate max|rate ms|maximum backlog|0, 1 paused or 2 held (0 = none);
--                     the field EVERY has the limits of each key, where the key has none of its own
--   P:fair-rates      hash, key -> start|count of its rate window
--   P:fair-state      hash: waiting (number of ready jobs), sequence (of arrivals), turn, hold:<key> (when the hold ends)
-- A key that is served moves STEP / weight turns back. A key that joins starts nearly one such step behind the first of
-- P:fair, so that a key which leaves after each job and comes back gains nothing.

local F = G.fair

local FEATURE = 'fair-keys:0.2.0'
-- Divisible by all weights up to 10. A turn stays below 2^53 for 10^11 rounds; it restarts when no key is ready.
local STEP = 10080
local PRIORITY_BAND = 2199023255552 -- 2^41: arrivals per priority
-- weight|concurrency|rate max|rate ms|maximum backlog|0, 1 or 2. A build that does not know 2 reads 0.
local STORED_LIMITS = '^(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d)$'
local PAUSED, HELD = '1', '2'
local NO_LIMITS = '1|0|0|0|0|0'
local EVERY, DEFAULTS_FEATURE = '\0every', 'fair-defaults:0.2.0'
local HOLD = 'hold:'

F.FULL, F.PAUSED = 9007199254740990, 9007199254740991

-- Return whether the queue has, or had, jobs with a fair key.
local function has_feature(q) return G.features_of(redis.call('HGET', q.meta, 'features'))[FEATURE] == true end
F.used = function(q) return G.once(q, 'has_fair', has_feature) end

-- Remember whether the set of the queue's features has fair keys.
F.note = function(q, features) q.has_fair = features[FEATURE] == true end

F.use = function(q)
  if rawget(q, 'has_fair') then return end
  G.use_feature(q, FEATURE)
  q.has_fair = true
end

F.queue_of = function(q, key) return q.P .. 'fairq:' .. key end

local function parse(text)
  local weight, concurrency, rate_max, rate_ms, most, paused = G.match(text, STORED_LIMITS)
  if not weight then return nil end
  return { weight = math.max(1, G.num(weight)), concurrency = G.num(concurrency), rate_max = G.num(rate_max),
    rate_ms = G.num(rate_ms), max_backlog = G.num(most), paused = paused == PAUSED, held = paused == HELD }
end

F.no_limits = function() return { weight = 1, concurrency = 0, rate_max = 0, rate_ms = 0, max_backlog = 0 } end

-- Return the limits that were set for this key; nil if there are none.
F.own_limits = function(q, key) return parse(G.pcall('HGET', q.fair_limits, key)) end

-- Return the limits of each key, which are read once per call; false if there are none.
local function read_every(q) return F.own_limits(q, EVERY) or false end
local function limits_of_each(q) return G.once(q, 'fair_every', read_every) end

-- Return the limits of a key; nil if it has none. Those of each key apply to the limits that it does not have itself; the
-- keys of job names (limited_names.lua) have only their own.
F.limits = function(q, key)
  local own, every = F.own_limits(q, key), limits_of_each(q)
  if not every or string.sub(key, 1, 1) == '\0' then return own end
  local limits = own or F.no_limits()
  if limits.concurrency == 0 then limits.concurrency = every.concurrency end
  if limits.max_backlog == 0 then limits.max_backlog = every.max_backlog end
  if limits.rate_max == 0 and every.rate_max > 0 then
    limits.rate_max, limits.rate_ms, limits.rate_is_shared = every.rate_max, every.rate_ms, true
  end
  return limits
end

-- Write the limits of a key; it has no entry without any. Return whether they have changed.
F.write_limits = function(q, key, l)
  local text = table.concat({ G.int(l.weight), G.int(l.concurrency), G.int(l.rate_max), G.int(l.rate_ms),
    G.int(l.max_backlog), l.paused and PAUSED or l.held and HELD or '0' }, '|')
  if text == NO_LIMITS then return redis.call('HDEL', q.fair_limits, key) == 1 end
  if redis.call('HGET', q.fair_limits, key) == text then return false end
  redis.call('HSET', q.fair_limits, key, text)
  q.fair_limited = true
  return true
end

-- A hold: jobs of the key do not start until a time. A key that is paused meanwhile stays held afterwards.
F.hold = function(q, key, till)
  G.note_clock(q, G.now(q))
  redis.call('HSET', q.fair_state, HOLD .. key, G.int(till))
end

-- Return when the hold of the key ends, 0 = it is not held.
F.held_until = function(q, key)
  local till = G.pcall('HGET', q.fair_state, HOLD .. key)
  return G.count_of(till)
end

-- Forget a hold that has ended. limits: those of the key, with `held`.
F.end_hold = function(q, key, limits)
  limits.held = false
  redis.call('HDEL', q.fair_state, HOLD .. key)
  local own = F.own_limits(q, key)
  if not own then return end
  own.held = false
  F.write_limits(q, key, own)
end

F.step = function(limits) return limits and math.max(1, math.floor(STEP / limits.weight)) or STEP end

-- Return whether any key has limits, which is read once per call.
local function has_limits(q) return redis.call('EXISTS', q.fair_limits) == 1 end
F.any_limited = function(q) return G.once(q, 'fair_limited', has_limits) end

-- Let a part of the keys be served. Those that are in the ring already keep their turn.
local function join_all(q, keys, from, to)
  local _, head = G.member_at(q.fair, 0)
  local first, limited, turns, n = head and G.num(head), F.any_limited(q), {}, 0
  for i = from, to do
    local turn = first and first + (limited and F.step(F.limits(q, keys[i])) or STEP) - 1 or 0
    turns[n + 1], turns[n + 2], n, first = turn, keys[i], n + 2, first or 0
  end
  redis.call('ZADD', q.fair, 'NX', unpack(turns))
end

local function join(q, key) join_all(q, { key }, 1, 1) end

-- Read once per call, as most queues have no limits.
local function has_blocked(q) return redis.call('EXISTS', q.fair_blocked) == 1 end
local function any_blocked(q) return G.once(q, 'fair_any_blocked', has_blocked) end

local ENTERED_MAX = 500

-- Note that a key has ready jobs.
local function enter(q, key)
  if redis.call('ZADD', q.fair_keys, 'NX', 0, key) == 1 then join(q, key) end
end

-- The same for the keys of an add of many jobs, in the order in which they got their first one: a few commands for all
-- if no key is blocked, since a key that has ready jobs already is in the ring then.
local function enter_all(q, keys)
  if any_blocked(q) then
    for i = 1, #keys do enter(q, keys[i]) end
    return
  end
  for from = 1, #keys, ENTERED_MAX do
    local to, members, n = math.min(from + ENTERED_MAX - 1, #keys), {}, 0
    for i = from, to do members[n + 1], members[n + 2], n = 0, keys[i], n + 2 end
    if redis.call('ZADD', q.fair_keys, 'NX', unpack(members)) > 0 then join_all(q, keys, from, to) end
  end
end

-- Note that a key has ready jobs, at the end of an add of many.
local function enter_later(q, adding, key)
  if adding.joined[key] then return end
  if #adding.keys == 0 then -- a key of a foreign type fails before the first job
    redis.call('ZCARD', q.fair_keys)
    redis.call('ZCARD', q.fair)
  end
  adding.joined[key], adding.keys[#adding.keys + 1] = true, key
end

-- Remove keys without ready jobs.
F.forget_all = function(q, keys)
  if #keys == 0 then return end
  local adding = rawget(q, 'adding_many')
  for i = 1, adding and #keys or 0 do adding.joined[keys[i]] = nil end
  redis.call('ZREM', q.fair_keys, unpack(keys))
  if redis.call('ZREM', q.fair, unpack(keys)) < #keys then redis.call('ZREM', q.fair_blocked, unpack(keys)) end
end

F.forget = function(q, key) F.forget_all(q, { key }) end

-- Keys that are blocked keep their jobs and leave the ring.
F.block = function(q, key, till)
  redis.call('ZREM', q.fair, key)
  redis.call('ZADD', q.fair_blocked, G.int(till), key)
  q.fair_any_blocked = true
end

-- Let a blocked key be served again. If it still may not be, the next fetch blocks it again.
F.unblock = function(q, key)
  if redis.call('ZREM', q.fair_blocked, key) == 0 then return false end
  if redis.call('ZSCORE', q.fair_keys, key) then join(q, key) end
  return true
end

-- ------------------------------------------------------------------ ready and delayed jobs

-- Return the number of an arrival. An add of many jobs takes as many numbers as it has jobs when the first needs one.
local function next_sequence(q, adding)
  if not adding then return G.bump(q.fair_state, 'sequence') end
  if adding.left == 0 then
    adding.left, adding.sequence = adding.most, G.bump(q.fair_state, 'sequence', adding.most) - adding.most
  end
  adding.left, adding.sequence = adding.left - 1, adding.sequence + 1
  return adding.sequence
end

-- Count the arrivals of `most` jobs that `callback` adds once for all, and write the clock of priorities, the sequences
-- of groups, the keys and the markers once. adding: what the jobs share (core/functions/_adding.lua). It returns its
-- results, or the error.
F.adding = function(q, adding, most, callback, ...)
  local keys = {}
  adding.most, adding.left, adding.waiting, adding.wakes, adding.joined, adding.keys = most, 0, 0, 0, {}, {}
  adding.priority_clock = nil
  q.adding_many = adding
  local ok, results = pcall(callback, ...)
  q.adding_many = nil
  adding.most = nil
  if adding.turns then G.groups.write_turns(q, adding.turns) end
  adding.turns = nil
  if adding.wakes > 0 then G.wake(q, adding.wakes) end
  if adding.priority_clock then redis.call('HSET', q.meta, 'priorityClock', G.int(adding.priority_clock)) end
  if adding.waiting ~= 0 then G.bump(q.fair_state, 'waiting', adding.waiting) end
  for i = 1, #adding.keys do
    local key = adding.keys[i]
    if adding.joined[key] then keys[#keys + 1] = key end -- it was not forgotten again
  end
  if #keys > 0 then enter_all(q, keys) end
  if not ok then error(results, 0) end
  return results
end

-- Return a number before those of the ready jobs of a key with this priority, or of a new arrival.
local function sequence_before(q, key, band)
  local start = band * PRIORITY_BAND
  local head = redis.call('ZRANGEBYSCORE', F.queue_of(q, key), G.int(start), G.int(start + PRIORITY_BAND - 1), 'LIMIT', 0,
    1, 'WITHSCORES')
  local first = head[G.rows.scored.score]
  return first and math.max(0, tonumber(first) - start - 1) or next_sequence(q)
end

-- Put a job into its place. due: epoch ms, nil = now. first: true = before the others of its priority. Return the state and
-- '', as G.place does.
F.place = function(q, id, key, priority, due, first)
  F.use(q)
  if due then
    G.add_delayed(q, q.fair_delayed, id, due)
    return 'delayed', ''
  end
  -- Priority 0 runs after all priorities.
  local band, adding = priority > 0 and priority or G.PRIORITY_MAX, rawget(q, 'adding_many')
  local score = band * PRIORITY_BAND + (first and sequence_before(q, key, band) or next_sequence(q, adding))
  local added = redis.call('ZADD', F.queue_of(q, key), score, id)
  if adding then
    adding.waiting = adding.waiting + added
  elseif added == 1 then
    G.bump(q.fair_state, 'waiting')
  end
  if adding then enter_later(q, adding, key) else enter(q, key) end
  G.wake(q, 1)
  return 'waiting', ''
end

-- Put a job that a peer has moved to another place back into its own.
F.put_back = function(q, id, key, priority)
  F.place(q, id, key, G.priority_of(priority))
  G.set_state(q, id, 'waiting', '')
end

-- Delay an active job with a fair key until `at`. Return false for any other job.
F.delay = function(q, id, at)
  if not F.used(q) or redis.call('HEXISTS', q.fair_active, id) == 0 then return false end
  redis.call('ZADD', q.fair_delayed, G.score(G.clamped_time(at)), id)
  return true
end

F.is_waiting = function(q, id, key) return redis.call('ZSCORE', F.queue_of(q, key), id) and true or false end

-- Remove a ready job.
F.leave = function(q, id, key)
  local queue = F.queue_of(q, key)
  if redis.call('ZREM', queue, id) == 0 then return end
  local adding = rawget(q, 'adding_many')
  if adding then adding.waiting = adding.waiting - 1 else G.bump(q.fair_state, 'waiting', -1) end
  if redis.call('EXISTS', queue) == 0 then F.forget(q, key) end
end

-- Remove a delayed job from the scheduled set, or from that of the jobs with a fair key.
G.unschedule = function(q, id)
  redis.call('ZREM', q.scheduled, id)
  if F.used(q) then redis.call('ZREM', q.fair_delayed, id) end
end

F.waiting = function(q)
  local n = G.pcall('HGET', q.fair_state, 'waiting')
  return G.count_of(n)
end

-- Remove up to `count` ready jobs of any keys, and return their ids. Bound: `count` keys.
F.take_some = function(q, count)
  local ids = {}
  for _ = 1, count do
    local key = #ids < count and G.member_at(q.fair_keys, 0)
    if not key then break end
    local found = redis.call('ZRANGE', F.queue_of(q, key), 0, count - #ids - 1)
    for i = 1, #found do
      ids[#ids + 1] = found[i]
      F.leave(q, found[i], key)
    end
    if #found == 0 then F.forget(q, key) end
  end
  return ids
end

-- Return the maximum backlog of the key if it has as many ready jobs; else nil.
F.reached_backlog = function(q, key)
  if not F.any_limited(q) then return nil end
  local limits = F.limits(q, key)
  local most = limits and limits.max_backlog or 0
  if most > 0 and redis.call('ZCARD', F.queue_of(q, key)) >= most then return most end
  return nil
end

-- Move due jobs to their keys, `limit` at most. Return ms until the next one is due, -1 = none.
F.promote_due = function(q, now, limit, quiet)
  return G.promote_members(q, q.fair_delayed, now, limit, quiet, G.promote_job)
end

-- ------------------------------------------------------------------ active jobs

-- Add to the numbers of active jobs. changes: key -> number; keys: its keys.
local function change_running(q, keys, changes)
  local numbers, set, gone = redis.call('HMGET', q.fair_running, unpack(keys)), {}, {}
  for i = 1, #keys do
    local n = G.count_of(numbers[i]) + changes[keys[i]]
    if n > 0 then
      set[#set + 1], set[#set + 2] = keys[i], G.int(n)
    else
      gone[#gone + 1] = keys[i]
    end
  end
  if #set > 0 then G.set_fields(redis.call, q.fair_running, set) end
  if #gone > 0 then redis.call('HDEL', q.fair_running, unpack(gone)) end
end

local function count(keys, changes, key, by)
  if not changes[key] then
    changes[key] = 0
    keys[#keys + 1] = key
  end
  changes[key] = changes[key] + by
end

-- Write that jobs have become active. ids: jobs; keys: their keys.
F.started = function(q, ids, keys)
  if #ids == 0 then return end
  F.use(q)
  local known, active, changed, changes = redis.call('HMGET', q.fair_active, unpack(ids)), {}, {}, {}
  for i = 1, #ids do
    active[2 * i - 1], active[2 * i] = ids[i], keys[i]
    if not known[i] then count(changed, changes, keys[i], 1) end
  end
  G.set_fields(redis.call, q.fair_active, active)
  if #changed > 0 then change_running(q, changed, changes) end
end

-- A job becomes active. While keys are served, this is written once for all of them (fetch_fair.lua).
F.start = function(q, id, key)
  local serving = rawget(q, 'fair_serving')
  if not serving then return F.started(q, { id }, { key }) end
  serving.ids[#serving.ids + 1], serving.keys[#serving.keys + 1] = id, key
  serving.started[key] = (serving.started[key] or 0) + 1
end

F.running = function(q, key)
  local n, serving = G.pcall('HGET', q.fair_running, key), rawget(q, 'fair_serving')
  return G.count_of(n) + (serving and serving.started[key] or 0)
end

-- Count a slot that a key got which could not be served before (was_full), so that another worker is woken up if this
-- call does not use it.
F.count_freed = function(q, key, was_full)
  local fetching = rawget(q, 'fetching')
  if not fetching then
    if was_full then G.wake(q, 1) end
    return
  end
  local freed = fetching.fair_freed or { count = 0, keys = {} }
  fetching.fair_freed = freed
  if was_full then freed.keys[key] = true end
  if freed.keys[key] then freed.count = freed.count + 1 end
end

-- Let a key with a free slot be served again.
local function free_slot(q, key)
  local full = any_blocked(q) and tonumber(redis.call('ZSCORE', q.fair_blocked, key)) == F.FULL
  if full then F.unblock(q, key) end
  F.count_freed(q, key, full)
end

-- End the activity of jobs; nothing happens for jobs without a fair key, or that have left before.
F.leave_active = function(q, ids)
  if not F.used(q) then return end
  local keys, left, changed, changes = redis.call('HMGET', q.fair_active, unpack(ids)), {}, {}, {}
  for i = 1, #ids do
    if keys[i] then
      left[#left + 1] = ids[i]
      count(changed, changes, keys[i], -1)
    end
  end
  if #left == 0 then return end
  redis.call('HDEL', q.fair_active, unpack(left))
  change_running(q, changed, changes)
  local fetching = rawget(q, 'fetching')
  if not any_blocked(q) and not (fetching and fetching.fair_freed) then return end
  for i = 1, #ids do
    if keys[i] then free_slot(q, keys[i]) end
  end
end

-- ------------------------------------------------------------------ repair

local SAMPLE, UNBLOCKED_MAX = 10, 1000

-- Forget holds that have ended, of a few keys chosen at random: without jobs, a key is not served, which would end them.
local function end_some_holds(q)
  local keys = G.pcall('HRANDFIELD', q.fair_limits, SAMPLE)
  local now = G.now(q)
  for i = 1, #keys do
    local limits = F.limits(q, keys[i])
    if limits and limits.held and F.held_until(q, keys[i]) <= now then F.end_hold(q, keys[i], limits) end
  end
end

-- Forget rate windows of a few keys chosen at random, if they have ended or have no limit any more.
F.forget_windows = function(q, now, most)
  local keys = G.pcall('HRANDFIELD', q.fair_rates, most)
  for i = 1, #keys do
    local limits = F.limits(q, keys[i])
    local start = tonumber(G.match(G.pcall('HGET', q.fair_rates, keys[i]), '^(%d+)|'))
    if not (limits and limits.rate_max > 0 and start) or G.window_is_over(start, limits.rate_ms, now) then
      redis.call('HDEL', q.fair_rates, keys[i])
    end
  end
end

-- Use the limits of each key, which are changed: keys may be served again that are full or rate limited. Bound:
-- UNBLOCKED_MAX keys; any other is served again when one of its jobs or its window ends.
F.use_every = function(q)
  F.use(q)
  G.use_feature(q, DEFAULTS_FEATURE)
  q.fair_every = nil
  local keys = redis.call('ZRANGEBYSCORE', q.fair_blocked, '-inf', '(' .. G.int(F.PAUSED), 'LIMIT', 0, UNBLOCKED_MAX)
  for i = 1, #keys do F.unblock(q, keys[i]) end
end

F.EVERY = EVERY

-- Repair a few keys and active jobs, chosen at random: keys that are neither served nor blocked, keys without jobs, and
-- active jobs that have ended without leaving, for example because a peer removed their records.
F.repair_some = function(q)
  if not F.used(q) then return end
  local keys = G.pcall('ZRANDMEMBER', q.fair_keys, SAMPLE)
  for i = 1, #keys do
    local key = keys[i]
    if redis.call('EXISTS', F.queue_of(q, key)) == 0 then
      F.forget(q, key)
    elseif not redis.call('ZSCORE', q.fair, key) and not redis.call('ZSCORE', q.fair_blocked, key) then
      join(q, key)
      G.wake(q, 1)
    end
  end
  local ids = G.pcall('HRANDFIELD', q.fair_active, SAMPLE)
  for i = 1, #ids do
    if G.state_of(q, ids[i]) ~= 'active' then F.leave_active(q, { ids[i] }) end
  end
  end_some_holds(q)
  F.forget_windows(q, G.now(q), SAMPLE)
end
