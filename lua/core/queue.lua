-- Derive the key names of one queue from the one key that a call declares. Every name has the queue's hash tag, so a
-- call never leaves its slot.

local SETTINGS = G.first_settings
local CHANNELS, TIMELINE, FEATURES = SETTINGS.wakeChannels, SETTINGS.timeline, SETTINGS.features

local STATIC = {
  id = 'id', stream = 'stream', scheduled = 'scheduled', completed = 'completed', failed = 'failed',
  events = 'events', meta = 'meta', lifo = 'lifo', priority = 'priority', list_active = 'list-active',
  list_active_ids = 'list-active-ids', list_popped = 'list-popped', list_taken = 'list-taken', wake = 'wake',
  workers = 'workers', stall_watch = 'stall-watch', stalled_policies = 'stalled-policies',
  metrics_completed = 'metrics:completed', metrics_failed = 'metrics:failed', suspended = 'suspended',
  ratelimited = 'ratelimited', invalidated = 'invalidated',
  rate = 'rate', dedup = 'dedup', dedup_expiry = 'dedup-expiry', ordering = 'ordering',
  parents_left = 'parents-left', search_cursors = 'search-cursors', outbox = 'outbox', writes = 'writes',
  write_reports = 'write-reports', last_write = 'last-write', results = 'results',
  waiting_children = 'waiting-children', remote_parents = 'remote-parents',
  remote_children = 'remote-children', group_watch = 'group-watch', schedulers = 'schedulers',
  suspects = 'suspects', suspect_host = 'suspect-host', losses = 'losses', leases = 'leases',
  wake_channels = 'wake-channels',
  temporary = 'temporary', obliterating = 'obliterating',
  restore = 'restore', failure_counts = 'failure-counts', failure_retries = 'failure-retries',
  ranked_above = 'ranked-above', ranked_below = 'ranked-below', delayed_own = 'delayed-own',
  fair = 'fair', fair_keys = 'fair-keys', fair_blocked = 'fair-blocked', fair_delayed = 'fair-delayed',
  fair_active = 'fair-active', fair_running = 'fair-running', fair_limits = 'fair-limits', fair_rates = 'fair-rates',
  fair_state = 'fair-state', batches = 'batches',
  schedulers_own = 'schedulers-own', schedulers_due = 'schedulers-due', schedulers_ended = 'schedulers-ended',
  moved_keys = 'moved-keys', deleted_layout = 'deleted-layout',
}

local build = {
  __index = function(keys, field)
    local suffix = STATIC[field]
    if not suffix then error('no such key: ' .. tostring(field)) end
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

-- Return the keys that a job may own besides its hash (docs/reference/data-model.md, "Keys").
G.satellites = function(q, id)
  local P = q.P
  return P .. 'log:' .. id, P .. 'deps:' .. id, P .. 'parents:' .. id, P .. 'jstream:' .. id, P .. 'signals:' .. id,
    P .. 'depvals:' .. id
end

G.GROUP = 'workers'
G.WAKE_GROUP = 'wakers'
