-- dead_letter_queue: set the dead-letter queue and the kinds of failures it receives.
-- KEYS 1 meta   ARGV 1 packed {name, on, subscription}   -> the queue name now in effect, '' = none
-- name: false = unchanged, '' = none   on: kinds of failures, separated by commas
-- subscription: '', or the subscription of a broadcast; a subscription without a setting uses the queue's setting
-- Bound: constant.
-- Also adds dead-letter entries: a job that fails finally is added to the outbox in the step that fails it. Only
-- functions of this library do that: a Node peer that fails a job through the wire library adds its own entry, and may
-- have no worker that empties an outbox.

local KINDS = 'failed,stalled,expired,cost'

-- Failures not caused by a handler, by their reason. All others have the kind of their event.
local BY_REASON = {
  ['job stalled more than maxStalledCount'] = 'stalled',
  ['cost exceeds token bucket capacity'] = 'cost',
  ['malformed job record: no name, data or opts'] = 'malformed',
  revoked = 'revoked',
}

-- Return the fields of meta with the setting of a queue or a subscription. ('' = no dead-letter queue; an absent field
-- = no setting.)
local function fields_of(subscription)
  local suffix = subscription == '' and '' or ':' .. subscription
  return 'deadLetterQueueName' .. suffix, 'deadLetterOn' .. suffix
end

local function setting_of(q, subscription)
  local name, on = unpack(redis.call('HMGET', q.meta, fields_of(subscription)))
  if not name and subscription ~= '' then name, on = unpack(redis.call('HMGET', q.meta, fields_of(''))) end
  return G.given(name), G.given(on) or KINDS
end

local function read_setting(q, subscription)
  local known = {}
  known.name, known.on = setting_of(q, subscription)
  return known
end

-- Return the dead-letter queue for failures of that kind. Read once per call, and only if a job fails finally.
local function queue_for(q, kind, subscription)
  local known = G.once(q, 'dead_letters', read_setting, subscription)
  if known.name and string.find(',' .. known.on .. ',', ',' .. kind .. ',', 1, true) then return known.name end
  return nil
end

local function put(q, name, id, kind, reason, h, activation, attempts, ...)
  G.outbox_put(q, 'dead', 'to', name, 'id', id, 'activation', activation, 'why', kind, 'name', h.name or '',
    'data', h.data or '', 'reason', reason, 'attempts', G.int(attempts), ...)
end

-- Call this before the job's record is marked as failed, since `attemptsMade` must be that of its last activation.
-- history: its failed attempts (features/failures), nil = none.
-- fence: of the failed attempt; nil = the failure was not an attempt, and gets a number of its own.
G.dead_letter = function(q, id, event, reason, fence, history)
  local kind = not fence and BY_REASON[reason] or event
  local name = queue_for(q, kind, '')
  if not name then return end
  local h = G.pick(q.J .. id, 'name', 'data', 'attemptsMade', 'opts', 'ownKeys')
  local tags = string.find(h.opts or '', '"tags"', 1, true) and { 'opts', h.opts } or {}
  put(q, name, id, kind, reason, h, G.int(fence or G.bump(q.J .. id, 'fence')), G.count_of(h.attemptsMade),
    'failedAttempts', history or '', 'ownKeys', h.ownKeys or '', unpack(tags))
end

-- The same for a message that failed finally in one subscription. attempts: as of its last activation.
G.dead_message = function(q, group, id, kind, reason, entry, fence, attempts)
  local name = queue_for(q, kind, group)
  if not name then return end
  put(q, name, id, kind, reason, G.pick(q.J .. id, 'name', 'data'), group .. '|' .. entry .. '|' .. G.int(fence), attempts,
    'subscription', group)
end

-- Delete the setting of a deleted subscription.
G.delete_dead_letter_setting = function(q, subscription) redis.call('HDEL', q.meta, fields_of(subscription)) end

G.export('dead_letter_queue', { 'allow-oom' }, function(q, r)
  local subscription = r.subscription or ''
  local name, on = fields_of(subscription)
  if r.name == '' and subscription == '' then
    redis.call('HDEL', q.meta, name, on)
  elseif r.name then
    redis.call('HSET', q.meta, name, r.name, on, r.on)
  end
  return setting_of(q, subscription) or ''
end)
