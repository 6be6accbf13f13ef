-- Reject queues that use a feature which this build does not know (docs/reference/functions.md, "Features of a queue").
-- The field `features` of P:meta lists them: `name:version`, separated by commas. The version is that of the first
-- release of glidemq_py that handles the feature. Most queues have no such field: what release 0.1.0 knows is not listed.

-- All features that this build knows, as { ['name:version'] = true }. CONTRIBUTING.md says when to add one.
G.KNOWN_FEATURES = { ['leases:0.2.0'] = true, ['dependencies:0.2.0'] = true, ['ranks:0.2.0'] = true,
  ['fair-keys:0.2.0'] = true, ['schedule-overlap:0.2.0'] = true, ['job-batches:0.2.0'] = true,
  ['name-limits:0.2.0'] = true, ['partitions:0.2.0'] = true, ['fair-defaults:0.2.0'] = true,
  ['schedule-workers:0.2.0'] = true, ['list-ids:0.2.0'] = true, ['steps:0.2.0'] = true }

local LISTED_MAX = 100
-- Positions of the fields in the settings that G.unknown_feature returns. wakeChannels:
-- features/many_queues/wake_channels.lua
G.first_settings = G.positions({ 'features', 'wakeChannels', 'timeline' })
local FEATURES = G.first_settings.features

-- The sets of the lists that were read last, by their text: each call reads one, and there are few different ones.
local LISTS_KEPT = 100
local kept, kept_count = {}, 0
local NONE = {}

-- Return the set of the features in a list, and the first one that this build does not know.
local function parse(list)
  local found, unknown, n = {}, nil, 0
  for feature in string.gmatch(list, '[^,]+') do
    n = n + 1
    if n > LISTED_MAX then return found, unknown or feature end
    if not G.KNOWN_FEATURES[feature] then unknown = unknown or feature end
    found[feature] = true
  end
  return found, unknown
end

-- list: the value of `features`. Return its features as { ['name:version'] = true }, which must not be changed, and the
-- first that this build does not know.
G.features_of = function(list)
  if type(list) ~= 'string' then return NONE, nil end
  local features = kept[list]
  if features then return features, nil end
  local found, unknown = parse(list)
  if unknown then return found, unknown end
  if kept_count >= LISTS_KEPT then kept, kept_count = {}, 0 end
  kept[list], kept_count = found, kept_count + 1
  return found, nil
end

-- Return the error reply for a feature that this build does not know.
G.unknown_feature_error = function(meta_key, feature)
  return redis.error_reply('ERR unknown feature ' .. feature .. ' of queue ' .. string.sub(meta_key, 1, -6))
end

-- list: the value of `features`. Return the error reply if this build does not know all of them, else nil.
G.feature_error = function(meta_key, list)
  local _, unknown = G.features_of(list)
  return unknown and G.unknown_feature_error(meta_key, unknown) or nil
end

-- Return the meta key of the queue that a key belongs to; nil = no queue.
local function meta_of(key)
  if string.sub(key, -5) == ':meta' then return key end
  local P = string.match(key, '^(.*{[^{}]*}:)')
  return P and P .. 'meta'
end

-- Return the error reply for the first of the declared keys whose queue uses an unknown feature, else nil. A call that
-- declares a meta key touches no other queue. The second value: the settings of the first key (G.first_settings), if it
-- is a meta key.
G.unknown_feature = function(keys)
  local last, first
  for i = 1, #keys do
    local key = keys[i]
    local meta = meta_of(key)
    if meta and meta ~= last then
      local settings = redis.pcall('HMGET', meta, 'features', 'wakeChannels', 'timeline')
      if settings.err then G.raise_denied(settings) end
      local rejected = settings[FEATURES] and G.feature_error(meta, settings[FEATURES]) or nil
      if i == 1 and meta == key then first = settings end
      if rejected or meta == key then return rejected, first end
      last = meta
    end
  end
  return nil, first
end

-- Return the function that is registered for `callback`: it rejects before anything is written. `callback` also gets the
-- settings that were read.
G.guarded = function(callback)
  return function(keys, args)
    local rejected, settings = G.unknown_feature(keys)
    if rejected then return rejected end
    return callback(keys, args, settings)
  end
end

-- List a feature in the queue's `features`; to be called before the feature's first write.
G.use_feature = function(q, feature)
  local list = redis.call('HGET', q.meta, 'features') or ''
  if string.find(',' .. list .. ',', ',' .. feature .. ',', 1, true) then return end
  redis.call('HSET', q.meta, 'features', list == '' and feature or list .. ',' .. feature)
end
