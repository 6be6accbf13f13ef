-- Reject queues that use a feature which this build does not know (docs/reference/functions.md, "Features of a queue").
-- The field `features` of P:meta lists them: `name:version`, separated by commas. The version is that of the first
-- release of glidemq_py that handles the feature. Most queues have no such field: what release 0.1.0 knows is not listed.

-- All features that this build knows, as { ['name:version'] = true }. CONTRIBUTING.md says when to add one.
G.KNOWN_FEATURES = { ['leases:0.2.0'] = true, ['dependencies:0.2.0'] = true, ['ranks:0.2.0'] = true,
  ['fair-keys:0.2.0'] = true, ['schedule-overlap:0.2.0'] = true, ['job-batches:0.2.0'] = true,
  ['name-limits:0.2.0'] = true, ['partitions:0.2.0'] = true, ['fair-defaults:0.2.0'] = true,
  ['schedule-workers:0.2.0'] = true }

local LISTED_MAX = 100
-- wakeChannels: features/many_queues/wake_channels.lua
local FIELDS = { 'features', 'wakeChannels', 'timeline' }
local AT = G.positions(FIELDS)

-- list: the value of `features`. Return the error reply if this build does not know all of them, else nil.
G.feature_error = function(meta_key, list)
  if type(list) ~= 'string' then return nil end
  local n = 0
  for feature in string.gmatch(list, '[^,]+') do
    n = n + 1
    if n > LISTED_MAX or not G.KNOWN_FEATURES[feature] then
      return redis.error_reply('ERR unknown feature ' .. feature .. ' of queue ' .. string.sub(meta_key, 1, -6))
    end
  end
  return nil
end

-- Return the meta key of the queue that a key belongs to; nil = no queue.
local function meta_of(key)
  if string.sub(key, -5) == ':meta' then return key end
  local P = string.match(key, '^(.*{[^{}]*}:)')
  return P and P .. 'meta'
end

-- Return the error reply for the first of the declared keys whose queue uses an unknown feature, else nil. A call that
-- declares a meta key touches no other queue.
G.unknown_feature = function(keys)
  local last
  for i = 1, #keys do
    local meta = meta_of(keys[i])
    if meta and meta ~= last then
      local settings = G.pcall('HMGET', meta, unpack(FIELDS))
      local rejected = G.feature_error(meta, settings[AT.features])
      if meta == G.first(keys) then
        keys.channels, keys.timeline = settings[AT.wakeChannels] or false, settings[AT.timeline] or false
        keys.features = settings[AT.features] or false
      end
      if rejected or meta == keys[i] then return rejected end
      last = meta
    end
  end
  return nil
end

-- Return the function that is registered for `callback`: it rejects before anything is written.
G.guarded = function(callback)
  return function(keys, args)
    local rejected = G.unknown_feature(keys)
    if rejected then return rejected end
    return callback(keys, args)
  end
end

-- List a feature in the queue's `features`; to be called before the feature's first write.
G.use_feature = function(q, feature)
  local list = redis.call('HGET', q.meta, 'features') or ''
  if string.find(',' .. list .. ',', ',' .. feature .. ',', 1, true) then return end
  redis.call('HSET', q.meta, 'features', list == '' and feature or list .. ',' .. feature)
end
