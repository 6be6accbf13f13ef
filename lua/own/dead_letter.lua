-- dead_letters_to: where the queue's dead letters go, and of which ends.
-- KEYS 1 meta   ARGV 1 packed {name, on}   -> the name that holds now, '' = none
-- name: false leaves it as it is, '' = there are none any more   on: kinds of ends, separated by commas
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

-- The queue for letters of that kind; read once a call, and only where a job ends for good.
local function address(q, kind)
  local known = rawget(q, 'dead_letters')
  if not known then
    local meta = redis.call('HMGET', q.meta, 'deadLetterQueueName', 'deadLetterOn')
    known = { name = G.given(meta[1]), on = ',' .. (G.given(meta[2]) or KINDS) .. ',' }
    rawset(q, 'dead_letters', known)
  end
  if known.name and string.find(known.on, ',' .. kind .. ',', 1, true) then return known.name end
  return nil
end

-- To be called before the job's record says that it has ended, for `attemptsMade` is that of its last activation.
-- fence: of the attempt that ended; nil = it was not an attempt that did, and the end gets a number of its own.
G.dead_letter = function(q, id, event, reason, fence)
  local kind = not fence and BY_REASON[reason] or event
  local name = address(q, kind)
  if not name then return end
  local key = q.J .. id
  local h = G.pick(key, 'name', 'data', 'attemptsMade')
  G.outbox_put(q, 'dead', 'to', name, 'id', id, 'activation', G.int(fence or G.bump(key, 'fence')), 'why', kind,
    'name', h.name or '', 'data', h.data or '', 'reason', reason, 'attempts', G.int(G.count_of(h.attemptsMade)))
end

G.export('dead_letters_to', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  if r[1] == '' then
    redis.call('HDEL', q.meta, 'deadLetterQueueName', 'deadLetterOn')
  elseif r[1] then
    redis.call('HSET', q.meta, 'deadLetterQueueName', r[1], 'deadLetterOn', r[2])
  end
  return redis.call('HGET', q.meta, 'deadLetterQueueName') or ''
end)
