-- Derive the key names of one queue from the one key that a call declares. Every name has the queue's hash tag, so a
-- call never leaves its slot.

local SETTINGS = G.first_settings
local CHANNELS, TIMELINE, FEATURES = SETTINGS.wakeChannels, SETTINGS.timeline, SETTINGS.features

-- What follows the prefix in the names of the keys that exist once per queue, which `obliterate` deletes. Their fields in
-- a queue's table have _ instead of - and :.
local SUFFIXES = ' id stream scheduled completed failed events meta lifo priority list-active list-active-ids '
  .. 'list-heartbeats list-popped list-taken wake workers stall-watch stalled-policies metrics:completed '
  .. 'metrics:failed suspended ratelimited invalidated rate dedup dedup-expiry ordering parents-left '
  .. 'search-cursors outbox writes write-reports last-write results waiting-children remote-parents '
  .. 'remote-children group-watch schedulers suspects suspect-host losses leases wake-channels temporary '
  .. 'obliterating restore failure-counts failure-retries ranked-above ranked-below delayed-own fair fair-keys '
  .. 'fair-blocked fair-delayed fair-active fair-running fair-limits fair-rates fair-state batches '
  .. 'schedulers-own schedulers-due schedulers-ended flows children-watch lock:recover lock:outbox lock:remote '
  .. 'lock:groups lock:schedules lock:backup lock:maintenance schedulers:lock:__tick__ '
  .. 'suspended:lock:__sweep__ '

local build = {
  __index = function(keys, field)
    local suffix = string.match(SUFFIXES, ' (' .. string.gsub(field, '_', '[-:]') .. ') ')
    if not suffix then error('no such key: ' .. field) end
    local key = keys.P .. suffix
    rawset(keys, field, key)
    return key
  end,
}

-- The key names of the queues that were used last stay in memory between calls: building them took a tenth of the
-- server's time for a lone job. By meta key, the metatable of the queue's tables.
local QUEUES_KEPT = 100
local kept, kept_count = {}, 0

local function names_of(meta_key)
  local names = kept[meta_key]
  if names then return names end
  if kept_count >= QUEUES_KEPT then kept, kept_count = {}, 0 end
  local P = string.sub(meta_key, 1, -5)
  names = { __index = setmetatable({ P = P }, build), P = P, J = P .. 'job:' }
  kept[meta_key], kept_count = names, kept_count + 1
  return names
end

-- G.queue(meta_key): return a table whose fields are key names. `P` is the prefix with its trailing colon.
-- settings: of G.unknown_feature, if it has read them. Then the fields `channels` and `timeline` have their values, false
-- if they are absent (features/many_queues/wake_channels.lua), and `features` is the set of the queue's features
-- (features/fair_keys/limited_names.lua).
G.queue = function(meta_key, settings)
  local names = names_of(meta_key)
  local channels, timeline, features
  if settings then
    channels, timeline = settings[CHANNELS] or false, settings[TIMELINE] or false
    features = G.features_of(settings[FEATURES])
  end
  return setmetatable({
    channels = channels, timeline = timeline, features = features, P = names.P, J = names.J,
    -- State of this call about groups (features/ordering_groups/group.lua): their records, slots freed of groups not
    -- yet read, whether writes are deferred to the end of the call, whether any group is limited (0 = not read yet;
    -- nil would be looked up as a key name).
    groups = {}, freed = {}, defer = false, any_limited = 0,
  }, names)
end

-- Return a field of a table of this call, such as `q`; the first time read(of, ...), which does not return nil.
G.once = function(of, field, read, ...)
  local known = rawget(of, field)
  if known == nil then
    known = read(of, ...)
    of[field] = known
  end
  return known
end

-- Return the keys that exist once per queue.
G.queue_keys = function(q)
  local keys = {}
  for suffix in string.gmatch(SUFFIXES, '%S+') do keys[#keys + 1] = q.P .. suffix end
  return keys
end

-- Return the keys that a job may own besides its hash (docs/reference/data-model.md, "Keys").
G.satellites = function(q, id)
  local P = q.P
  return P .. 'log:' .. id, P .. 'deps:' .. id, P .. 'parents:' .. id, P .. 'jstream:' .. id, P .. 'signals:' .. id,
    P .. 'depvals:' .. id
end

G.GROUP = 'workers'
G.WAKE_GROUP = 'wakers'
