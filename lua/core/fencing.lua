-- Check fencing tokens. Each activation has a token: the job's activation counter (`fence`) and the `processedOn` it
-- wrote. A worker-side call with an outdated token changes nothing (docs/reference/functions.md, "Attempts and
-- fencing").

G.OK, G.ALREADY, G.GONE, G.STALE, G.RETRYING, G.FAILED, G.RELEASED = 0, 1, 2, 3, 4, 5, 6
G.DELAYED, G.LIMITED = 8, 9 -- 7 is in core/functions/heartbeat.lua
G.SUSPENDED = 11
G.WAITING_CHILDREN = 10

-- h: {state, fence, processedOn}. ended: states that this attempt may have led to, for a call that is repeated
-- because its reply was lost. Return nil if the attempt is current, else the status to reply.
G.check_attempt = function(h, fence, processed_on, ended)
  if not h[1] then return G.GONE end
  if tonumber(h[2] or '') ~= fence then return G.STALE end
  if h[1] == 'active' and tonumber(h[3] or '') == processed_on then return nil end
  -- Completing leaves `processedOn` unchanged. After FLUSHALL another job may have the same id and fence.
  if h[1] == 'completed' and tonumber(h[3] or '') ~= processed_on then return G.STALE end
  if ended[h[1]] and h[3] then return G.ALREADY end
  return G.STALE
end
