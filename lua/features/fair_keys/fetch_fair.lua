-- Fetch jobs with a fair key: the keys take turns (a source of core/fetch.lua). Half of the free slots are offered to
-- them, the other half to the stream; each side gets the slots that the other does not use.

local PREFERRED = G.rows.preferred
local F = G.fair

local UNBLOCKED_MAX = 100
local PAGE_MAX = 200 -- keys of the ring that are read at a time
local PREFERRED_MAX = 16
local TURNS_MAX = 100
local WINDOWS_FORGOTTEN = 2 -- at most, per window that begins: so the windows of keys without jobs are not kept

-- Return the window of the key's rate limit: start and count.
local function window_of(q, key, limits, now)
  local text = redis.call('HGET', q.fair_rates, key)
  local start, count = G.match(text, '^(%d+)|(%d+)$')
  if not start or G.window_is_over(tonumber(start), limits.rate_ms, now) then return now, 0 end
  return tonumber(start), tonumber(count)
end

-- Return until when the key may not be served; nil = it may.
local function blocked_until(q, key, limits, now)
  if limits.paused then return F.PAUSED end
  if limits.held then
    local till = F.held_until(q, key)
    if till > now then return till end
    F.end_hold(q, key, limits)
  end
  if limits.concurrency > 0 and F.running(q, key) >= limits.concurrency then return F.FULL end
  if limits.rate_max > 0 then
    local start, count = window_of(q, key, limits, now)
    if count >= limits.rate_max then return start + limits.rate_ms end
  end
  return nil
end

local function count_start(q, key, limits, now)
  if limits.rate_max <= 0 then return end
  local start, count = window_of(q, key, limits, now)
  redis.call('HSET', q.fair_rates, key, G.int(start) .. '|' .. G.int(count + 1))
  if count == 0 and limits.rate_is_shared then F.forget_windows(q, now, WINDOWS_FORGOTTEN) end
end

-- ------------------------------------------------------------------ the ring, while keys are served
-- The first keys of the ring are read once. New turns are kept here, and written when the keys have been served, or
-- before more of the ring is read.

-- A worker may prefer keys, those of its last jobs: the first of them is served as long as its turn is at most `ring.lead`
-- after that of the key that is next, then the second. So no key gets further ahead of the others: one that is served
-- early keeps its turn in the ring while it has no jobs, or may not be served, until that turn comes.

-- Read the turns of the preferred keys that have ready jobs, except those that this call could not serve early.
local function read_preferred(q, ring, keys)
  ring.preferred, ring.is_preferred = {}, {}
  for i = 1, math.min(#keys, PREFERRED_MAX) do
    local key = keys[i]
    local turn = not (ring.is_preferred[key] or ring.held_up[key]) and redis.call('ZSCORE', q.fair, key)
    if turn and redis.call('EXISTS', F.queue_of(q, key)) == 1 then
      ring.is_preferred[keys[i]] = true
      ring.preferred[#ring.preferred + 1] = { key = keys[i], turn = G.num(turn) }
    end
  end
end

local function read_ring(q, ring, count)
  ring.read, ring.next, ring.again, ring.served, ring.turns = {}, 1, {}, {}, {}
  if ring.keys then
    read_preferred(q, ring, ring.keys)
    count = count + #ring.preferred
  end
  local found = redis.call('ZRANGE', q.fair, 0, count - 1, 'WITHSCORES')
  for i = 1, #found, 2 do ring.read[#ring.read + 1] = { key = found[i], turn = G.num(found[i + 1]) } end
  ring.whole = #ring.read < count
end

-- Return whether the turn of the key `a` is before that of `b`, in the order of the sorted set.
local function is_before(a, b) return a.turn < b.turn or a.turn == b.turn and a.key < b.key end

-- Remove the first preferred key that may be served; first: the next other key, if one is left. Return nil if there is
-- none.
local function take_preferred(ring, first)
  local next_turn = first and first.turn or math.huge
  for i = 1, #ring.preferred do next_turn = math.min(next_turn, ring.preferred[i].turn) end
  for i = 1, #ring.preferred do
    if ring.preferred[i].turn <= next_turn + ring.lead then return table.remove(ring.preferred, i) end
  end
end

-- Skip the preferred keys in what was read of the ring, and return the next other one.
local function skip_preferred(ring)
  for i = ring.next, #ring.read do
    ring.next = i
    if not ring.is_preferred[ring.read[i].key] then return ring.read[i] end
  end
  ring.next = #ring.read + 1
end

-- Remove the key whose turn is first, or a preferred one. Return nil if more of the ring must be read.
local function next_of(ring)
  local read, again = ring.read[ring.next], G.first(ring.again)
  if ring.keys then
    read = skip_preferred(ring)
    if not read and not ring.whole then return nil end
    local preferred = take_preferred(ring, again and (not read or is_before(again, read)) and again or read)
    if preferred then return preferred end
  end
  if read and (not again or is_before(read, again)) then
    ring.next = ring.next + 1
    return read
  end
  if not read and not ring.whole then return nil end
  return again and table.remove(ring.again, 1)
end

-- Give a served key its next turn.
local function put_back(ring, item, step)
  if not ring.turns[item.key] then ring.served[#ring.served + 1] = item.key end
  local again = ring.again
  item.turn = item.turn + step
  ring.turns[item.key] = item.turn
  if ring.keys and ring.is_preferred[item.key] then
    table.insert(ring.preferred, 1, item)
    return
  end
  local at = #again + 1
  if at == 1 or again[at - 1].turn < item.turn then -- nearly always: keys of one weight take turns
    again[at] = item
    return
  end
  for _ = 1, #again do
    if not is_before(item, again[at - 1]) then break end
    at = at - 1
  end
  table.insert(again, at, item)
end

-- A key had no job left.
local function leave(ring, item)
  if not ring.turns[item.key] then ring.served[#ring.served + 1] = item.key end
  ring.turns[item.key] = item.turn
end

-- Write the turns of the served keys, and remove those that have no more jobs. A preferred one keeps its turn in the ring.
local function write_ring(q, ring)
  local served, queues, turns, empty, early = ring.served, {}, {}, {}, {}
  if #served == 0 then return end
  for i = 1, #served do queues[i] = F.queue_of(q, served[i]) end
  local left = redis.call('EXISTS', unpack(queues))
  for i = 1, #served do
    local is_empty = left == 0 or left < #served and redis.call('EXISTS', queues[i]) == 0
    if is_empty and ring.keys and ring.is_preferred[served[i]] then early[#early + 1] = served[i] end
    if is_empty and early[#early] ~= served[i] then
      empty[#empty + 1] = served[i]
    else
      turns[#turns + 1] = G.int(ring.turns[served[i]])
      turns[#turns + 1] = served[i]
    end
  end
  if #turns > 0 then redis.call('ZADD', q.fair, 'XX', unpack(turns)) end
  if #early > 0 then redis.call('ZREM', q.fair_keys, unpack(early)) end
  F.forget_all(q, empty)
end

-- Activate a job that was added with this key, has no other rare option and has never run: fewer fields of its record are
-- read and returned than by core/fetch.lua, and it is completed like a plain job (docs/reference/data-model.md, "Plain
-- jobs"). A call with leases, ranks or a timeline does not use it. Return whether the job was fetched; if not,
-- nothing was changed. Hot: few calls of others.
local FIELDS = { 'state', 'fence', 'processedOn', 'revoked', 'timestamp', 'data', 'opts', 'progress', 'name',
  'fairKey', 'priority', 'expireAt', 'groupKey', 'budgetKey', 'parentId', 'schedulerName' }
local AT = G.positions(FIELDS)
local STATE, FENCE, PROCESSED_ON, REVOKED = AT.state, AT.fence, AT.processedOn, AT.revoked
local TIMESTAMP, DATA, OPTS, PROGRESS, NAME = AT.timestamp, AT.data, AT.opts, AT.progress, AT.name
local FAIR_KEY, PRIORITY, EXPIRE_AT, GROUP_KEY = AT.fairKey, AT.priority, AT.expireAt, AT.groupKey
local BUDGET_KEY, PARENT_ID, SCHEDULER = AT.budgetKey, AT.parentId, AT.schedulerName

local function is_simple(h, fair_key)
  return h[STATE] == 'waiting' and h[FAIR_KEY] == fair_key and h[PRIORITY] == '0'
    and not (h[FENCE] or h[PROCESSED_ON] or h[REVOKED] or h[PROGRESS] or h[EXPIRE_AT])
    and not (h[GROUP_KEY] or h[BUDGET_KEY] or h[PARENT_ID] or h[SCHEDULER])
    and h[NAME] and h[DATA] and h[OPTS]
end

local function activate_simple(q, fetching, serving, id, fair_key)
  local key, now_text = q.J .. id, fetching.now_text
  local h = fetching.pcall('HMGET', key, unpack(FIELDS))
  if not is_simple(h, fair_key) then return false end
  fetching.call('HSET', key, 'state', 'active', 'processedOn', now_text, 'lastActive', now_text, 'fence', '1',
    'takenBy', fetching.consumer)
  local listed, jobs, ids, data = fetching.from_lists, fetching.jobs, serving.ids, h[DATA]
  listed[#listed + 1] = id
  local at = #ids + 1
  ids[at], serving.keys[at] = id, fair_key
  if serving.limited then serving.started[fair_key] = (serving.started[fair_key] or 0) + 1 end
  fetching.bytes = fetching.bytes + #data
  jobs[#jobs + 1] = { id, '', 1, h[NAME], data, h[OPTS], h[TIMESTAMP] }
  return true
end

-- Serve a key. Return whether a job was fetched, and how many jobs were removed from the key.
local function serve_key(q, fetching, ring, item, serving)
  local limits = serving.limited and F.limits(q, item.key) or nil
  local till = limits and blocked_until(q, item.key, limits, fetching.now)
  if till then
    if ring.keys and ring.is_preferred[item.key] then
      ring.held_up[item.key] = true
    elseif redis.call('EXISTS', F.queue_of(q, item.key)) == 0 then
      leave(ring, item) -- it was served early, and has only kept its turn
    else
      F.block(q, item.key, till)
    end
    return false, 0
  end
  local id = G.first(redis.call('ZPOPMIN', F.queue_of(q, item.key)))
  if not id then
    leave(ring, item)
    return false, 0
  end
  put_back(ring, item, F.step(limits))
  local fetched = serving.is_short and activate_simple(q, fetching, serving, id, item.key)
    or G.activate(q, fetching, id, '')
  if fetched and limits then count_start(q, item.key, limits, fetching.now) end
  return fetched, 1
end

-- Fetch up to `most` jobs. Return whether no key is ready any more. Bound: `most` jobs, REJECTIONS_MAX others, and each of
-- their keys once more.
local function serve(q, fetching, most)
  local fetched, removed, empty = 0, 0, false
  local ring, page, preferred = { held_up = {} }, math.min(most, PAGE_MAX), fetching.preferred
  if preferred and #preferred[PREFERRED.keys] > 0 then
    ring.keys = preferred[PREFERRED.keys]
    ring.lead = math.min(G.count_of(preferred[PREFERRED.turns]), TURNS_MAX) * F.step()
  end
  local serving = {
    limited = redis.call('EXISTS', q.fair_limits) == 1,
    is_short = fetching.reads_plain and not (fetching.lease or fetching.timeline),
    ids = {}, keys = {}, started = {},
  }
  fetching.from_fair = true
  q.fair_serving = serving
  read_ring(q, ring, page)
  local ok, failure = pcall(function()
    for _ = 1, 2 * (most + G.REJECTIONS_MAX) do
      if fetched >= most or removed >= most + G.REJECTIONS_MAX or fetching.bytes >= G.REPLY_BYTES then return end
      local item = next_of(ring)
      if item then
        local served, gone = serve_key(q, fetching, ring, item, serving)
        removed = removed + gone
        if served then fetched = fetched + 1 end
      else
        write_ring(q, ring)
        read_ring(q, ring, page)
        empty = #ring.read == 0
        if empty then return end
      end
    end
  end)
  fetching.from_fair = false
  q.fair_serving = nil
  write_ring(q, ring)
  F.started(q, serving.ids, serving.keys)
  fetching.fair_fetched = (fetching.fair_fetched or 0) + fetched
  if removed > 0 then G.bump(q.fair_state, 'waiting', -removed) end
  if not ok then error(failure, 0) end
  return empty
end

G.sources.fair = function(q, fetching, free)
  if not rawget(q, 'has_fair') or redis.call('EXISTS', q.fair) == 0 then return true end
  local share = free
  if G.pcall('XLEN', q.stream) ~= 0 then -- half of the free slots, as jobs without a key are waiting or active
    share = math.floor(free / 2)
    if free % 2 == 1 then share = share + G.bump(q.fair_state, 'turn') % 2 end
  end
  if share > 0 then serve(q, fetching, share) end
  return true -- `fair_rest` finds out whether jobs are left
end

G.sources.fair_rest = function(q, fetching, free)
  return not rawget(q, 'has_fair') or serve(q, fetching, free)
end

local function next_unblocked(q, now) return G.until_first(q.fair_blocked, now, F.FULL) end

-- Let keys be served whose rate window has ended. Return ms until the next one ends, -1 = none.
local function unblock_due(q, now)
  local keys = redis.call('ZRANGEBYSCORE', q.fair_blocked, '-inf', G.int(now), 'LIMIT', 0, UNBLOCKED_MAX)
  for i = 1, #keys do
    if F.unblock(q, keys[i]) then F.count_freed(q, keys[i], true) end
  end
  if #keys == UNBLOCKED_MAX then return 0 end
  return next_unblocked(q, now)
end

-- Before an exchange fetches: promote and unblock what is due.
F.prepare = function(q, fetching, limit)
  if not rawget(q, 'has_fair') then return end
  fetching.fair_waits = redis.call('EXISTS', q.fair_delayed, q.fair_blocked) > 0
  if not fetching.fair_waits then return end
  fetching.next_due = G.earlier(F.promote_due(q, fetching.now, limit, fetching.quiet), unblock_due(q, fetching.now))
end

-- At its end: note when a key that it has rate limited may be served again, and wake up other workers for slots of
-- limited keys that it freed and did not use.
F.finish = function(q, fetching)
  if not rawget(q, 'has_fair') then return end
  if fetching.fair_waits or rawget(q, 'fair_any_blocked') then
    G.note_due(fetching, next_unblocked(q, fetching.now))
  end
  local freed = fetching.fair_freed
  local unused = freed and freed.count - (fetching.fair_fetched or 0) or 0
  if unused > 0 then G.wake(q, unused) end
end
