-- broadcast_redeliver: deliver a message again to a subscription that has finished it, with all attempts.
-- KEYS 1 meta   ARGV 1 packed {id, group, once}   -> 'ok' | 'gone' | 'no-subscription' | 'duplicate' | its state if it
-- is still to be delivered: 'active', 'delayed' or 'waiting'
-- once: '', or a name of this redelivery; a second one with the same name is a 'duplicate' (for a day)
-- Bound: constant, except for the page of entries that `place_of` may read.
local S = G.subscriptions

local STANDING = { pending = 'active', unread = 'waiting' }

G.export('broadcast_redeliver', { 'allow-oom' }, function(q, r)
  local id, group, once = r.id, r.group, r.once
  if not G.exists(q, id) then return 'gone' end
  if S.INTERNAL[group] or not G.stream_group(q, group) then return 'no-subscription' end
  local key = S.record_key(q, id, group)
  local record = G.pick(key, 'state', 'redelivery')
  if once ~= '' and record.redelivery == once then return 'duplicate' end
  if record.state == 'delayed' then return 'delayed' end
  local standing = STANDING[S.place_of(q, id, group)]
  if standing then return standing end
  -- Add it as a further attempt that is due now (features/delays/promote.lua).
  redis.call('ZADD', q.scheduled, G.int(G.now(q)), id .. '||' .. group)
  redis.call('UNLINK', key)
  S.write_record(q, id, group, 0, 'state', 'delayed', 'redelivery', once)
  G.wake(q, 1)
  return 'ok'
end)
