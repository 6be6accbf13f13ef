-- dead_letters_to: where the queue's dead letters go, and of which ends.
-- KEYS 1 meta   ARGV 1 packed {name, on, subscription}   -> the name that holds now, '' = none
-- name: false leaves it as it is, '' = there are none any more   on: kinds of ends, separated by commas
-- subscription: '', or the one of a broadcast whose dead letters they are; one that has none of its own has the queue's
--
-- And the dead letter itself: a job that ends for good is entered in the outbox in the step that ends it. Only calls of
-- this face do that: a Node peer that fails a job by the wire face adds its own, and may have nobody to empty an outbox.

local KINDS = 'failed,stalled,expired,cost'

-- Ends that a handler does not bring about, by their reason; all others are of the kind that their event names.
local BY_REASON = {
  ['job stalled more than maxStalledCount'] = 'stalled',
  ['cost exceeds token bucket capacity'] = 'cost',
  ['malformed job record: no name, data or opts'] = 'malformed',
  revoked = 'revoked',
}

-- Where a queue, or a subscription, has said where its letters go. ('' = nowhere; not the same as not having said it.)
local function fields_of(subscription)
  local suffix = subscription == '' and '' or ':' .. subscription
  return 'deadLetterQueueName' .. suffix, 'deadLetterOn' .. suffix
end

local function addressed(q, subscription)
  local meta = redis.call('HMGET', q.meta, fields_of(subscription))
  if not meta[1] and subscription ~= '' then meta = redis.call('HMGET', q.meta, fields_of('')) end
  return G.given(meta[1]), G.given(meta[2]) or KINDS
end

-- The queue for letters of that kind; read once a call, and only where a job ends for good.
local function address(q, kind, subscription)
  local known = rawget(q, 'dead_letters')
  if not known then
    local name, on = addressed(q, subscription)
    known = { name = name, on = ',' .. on .. ',' }
    rawset(q, 'dead_letters', known)
  end
  if known.name and string.find(known.on, ',' .. kind .. ',', 1, true) then return known.name end
  return nil
end

-- To be called before the job's record says that it has ended, for `attemptsMade` is that of its last activation.
-- fence: of the attempt that ended; nil = it was not an attempt that did, and the end gets a number of its own.
G.dead_letter = function(q, id, event, reason, fence)
  local kind = not fence and BY_REASON[reason] or event
  local name = address(q, kind, '')
  if not name then return end
  local key = q.J .. id
  local h = G.pick(key, 'name', 'data', 'attemptsMade')
  G.outbox_put(q, 'dead', 'to', name, 'id', id, 'activation', G.int(fence or G.bump(key, 'fence')), 'why', kind,
    'name', h.name or '', 'data', h.data or '', 'reason', reason, 'attempts', G.int(G.count_of(h.attemptsMade)))
end

-- The same of a message that has ended for good in one subscription; attempts: as of its last activation.
G.dead_message = function(q, group, id, kind, reason, entry, fence, attempts)
  local name = address(q, kind, group)
  if not name then return end
  local h = G.pick(q.J .. id, 'name', 'data')
  G.outbox_put(q, 'dead', 'to', name, 'id', id, 'activation', group .. '|' .. entry .. '|' .. G.int(fence), 'why', kind,
    'name', h.name or '', 'data', h.data or '', 'reason', reason, 'attempts', G.int(attempts), 'subscription', group)
end

-- A subscription that is gone has said nothing.
G.forget_dead_letters_of = function(q, subscription) redis.call('HDEL', q.meta, fields_of(subscription)) end

G.export('dead_letters_to', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local subscription = r[3] or ''
  local name, on = fields_of(subscription)
  if r[1] == '' and subscription == '' then
    redis.call('HDEL', q.meta, name, on)
  elseif r[1] then
    redis.call('HSET', q.meta, name, r[1], on, r[2])
  end
  return addressed(q, subscription) or ''
end)
